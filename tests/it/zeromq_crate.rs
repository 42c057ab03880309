//! The ZeroMQ sockets with peers of the crate `zeromq`, an independent implementation of ZMTP.

use std::time::Duration;

use zeromq::{PushSocket, Socket as _, SocketRecv as _, SocketSend as _, SubSocket, ZmqMessage};

use crate::harness::{Cellar, wait_for};

#[tokio::test]
async fn push_and_sub_of_the_zeromq_crate_interoperate() {
    let cellar =
        Cellar::start_configured("zeromq: {pull: 'ipc://DIR/in.sock', pub: 'ipc://DIR/out.sock'}\n", &[]);
    let address = |name: &str| format!("ipc://{}", cellar.dir.path().join(name).display());
    let mut sub = SubSocket::new();
    sub.connect(&address("out.sock")).await.unwrap();
    sub.subscribe("a/").await.unwrap();
    let mut push = PushSocket::new();
    push.connect(&address("in.sock")).await.unwrap();
    let event = |tag: &str| [tag.as_bytes(), b"\n\n\x80"].concat();
    // Until the subscription has arrived.
    let received = loop {
        push.send(ZmqMessage::from(event("a/first"))).await.unwrap();
        if let Ok(received) = tokio::time::timeout(Duration::from_millis(200), sub.recv()).await {
            break received.unwrap();
        }
    };
    assert_eq!(received.into_vec(), [event("a/first")]);
    let mut two: ZmqMessage = "a/two".into();
    two.push_back(b"\x80".to_vec().into());
    for message in [ZmqMessage::from(event("b/other")), two] {
        push.send(message).await.unwrap();
    }
    let last = loop {
        let received =
            tokio::time::timeout(Duration::from_secs(20), sub.recv()).await.unwrap().unwrap().into_vec();
        if received != [event("a/first")] {
            break received;
        }
    };
    assert_eq!(last, [event("a/two")]);
    let tags = || cellar.ask("events_list", vec![("tag", "b/*".into())])["events"].as_array().unwrap().len();
    wait_for("the other event", || (tags() == 1).then_some(()));
}
