//! The ZeroMQ sockets with peers of the crate `zeromq`, an independent implementation of ZMTP.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use zeromq::{
    PushSocket, ReqSocket, Socket as _, SocketRecv as _, SocketSend as _, SubSocket, ZmqMessage,
};

use crate::harness::{Asks as _, Cellar, wait_for};
use crate::zeromq_sockets::hello;

#[tokio::test]
async fn push_and_sub_of_the_zeromq_crate_interoperate() {
    let cellar = Cellar::start_configured(
        "zeromq: {pull: 'ipc://DIR/in.sock', pub: 'ipc://DIR/out.sock'}\n",
        &[],
    );
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
        let received = tokio::time::timeout(Duration::from_secs(20), sub.recv())
            .await
            .unwrap()
            .unwrap()
            .into_vec();
        if received != [event("a/first")] {
            break received;
        }
    };
    assert_eq!(last, [event("a/two")]);
    let tags = || {
        cellar.ask("events_list", vec![("tag", "b/*".into())])["events"]
            .as_array()
            .unwrap()
            .len()
    };
    wait_for("the other event", || (tags() == 1).then_some(()));
}

/// Names the peer of the child process.
const PEER: &str = "SALTCELLAR_TEST_REQ_PEER";

/// The reason why requests to a master do not use the crate (docs/decisions/zeromq-sockets.md). If this test fails after an
/// upgrade of the crate, reconsider that decision.
#[test]
fn a_peer_aborts_a_process_with_the_crates_req_socket() {
    if let Ok(peer) = std::env::var(PEER) {
        setrlimit(
            Resource::Core,
            Rlimit {
                current: Some(0),
                maximum: Some(0),
            },
        )
        .unwrap();
        let outcome = tokio::runtime::Runtime::new().unwrap().block_on(async {
            let mut req = ReqSocket::new();
            req.connect(&peer).await.unwrap();
            req.send("a request".into()).await.unwrap();
            tokio::time::timeout(Duration::from_secs(10), req.recv()).await
        });
        panic!("the process survived: {outcome:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("router.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "zeromq_crate::a_peer_aborts_a_process_with_the_crates_req_socket",
            "--nocapture",
        ])
        .env(PEER, format!("ipc://{}", path.display()))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&hello("ROUTER")).unwrap();
    let mut received = Vec::new();
    while memchr::memmem::find(&received, b"a request").is_none() {
        let mut bytes = [0; 1000];
        let n = stream.read(&mut bytes).unwrap();
        assert!(n > 0, "the child sends its request");
        received.extend_from_slice(&bytes[..n]);
    }
    // A header only: the length exceeds the address space of any host, so that the result depends on no allocator.
    stream
        .write_all(&[&[2][..], &(1_u64 << 62).to_be_bytes()].concat())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(6), "{stderr}");
    assert!(stderr.contains("memory allocation of"), "{stderr}");
}
