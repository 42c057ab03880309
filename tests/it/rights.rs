//! Rights of calls: the kernel reports a peer's uid, and the table of calls names the required right.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use rustix::process::{Uid, geteuid};
use saltcellar::api::CALLS;
use saltcellar::api::client::{Client, ClientError};

use crate::harness::{Cellar, map, serve_command, wait_for};
use saltcellar_testkit::missing;
use saltcellar_testkit::rights::{ADMIN, WRITE};

/// A user without any files.
const NOBODY: u32 = 65534;
/// The user of a master that does not run as root.
const MASTER: u32 = 54_321;

/// A connection of that user.
fn client_of(uid: u32, socket: &Path) -> Client {
    let uid = Uid::from_raw(uid);
    let connect = || {
        // Changes only this thread, which ends here.
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        Client::connect(socket).unwrap()
    };
    std::thread::scope(|scope| scope.spawn(connect).join().unwrap())
}

/// Makes a call without arguments, and returns the message if the right is missing.
fn denied(client: &mut Client, call: &str) -> Option<String> {
    match client.call(call, map(vec![])) {
        Err(ClientError::Refused { code, message, .. }) if message.contains("needs the right") => {
            assert_eq!(code, "refused");
            Some(message)
        }
        _ => None,
    }
}

/// The calls that a user cannot make, in the order of the table.
fn all_denied(uid: u32, socket: &Path) -> Vec<&'static str> {
    let mut client = client_of(uid, socket);
    CALLS
        .iter()
        .map(|call| call.name)
        .filter(|name| denied(&mut client, name).is_some())
        .collect()
}

fn of_table(lists: &[&[&str]]) -> Vec<&'static str> {
    CALLS
        .iter()
        .map(|call| call.name)
        .filter(|name| lists.iter().any(|list| list.contains(name)))
        .collect()
}

/// A daemon that accepts connections of all users; `DIR` stands for its directory.
fn open_to_all(yaml: &str) -> Cellar {
    let cellar = Cellar::start_configured(&format!("socket_mode: \"0777\"\n{yaml}"), &[]);
    std::fs::set_permissions(cellar.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    cellar
}

#[test]
fn every_call_requires_its_right() {
    if !geteuid().is_root() {
        return missing("root, to connect as other users");
    }
    assert_eq!(
        of_table(&[&ADMIN, &WRITE]).len(),
        ADMIN.len() + WRITE.len(),
        "a call is not in the table"
    );
    let cellar = open_to_all("bus: [DIR/bus]\n");
    let socket = cellar.socket();
    for uid in [NOBODY, MASTER] {
        assert_eq!(all_denied(uid, &socket), of_table(&[&ADMIN]), "uid {uid}");
    }
    assert_eq!(all_denied(0, &socket), [""; 0]);
    assert_eq!(cellar.counter("calls_denied"), 2 * ADMIN.len() as u64);
    // The master starts after the daemon, as another user.
    let bus = cellar.dir.path().join("bus");
    std::fs::create_dir(&bus).unwrap();
    let path = bus.join("master_event_pub.ipc");
    let _listener = UnixListener::bind(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(MASTER), None).unwrap();
    assert_eq!(all_denied(MASTER, &socket), [""; 0]);
    assert_eq!(all_denied(NOBODY, &socket), of_table(&[&ADMIN]));
    // A regular file does not count as a master's socket.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    std::os::unix::fs::chown(&path, Some(MASTER), None).unwrap();
    assert_eq!(all_denied(MASTER, &socket), of_table(&[&ADMIN]));
}

/// The calls that import, first in `WRITE`; each needs the flag alone to be denied.
const OF_IMPORTS: [&str; 6] = *WRITE.first_chunk().unwrap();

#[test]
fn a_denial_names_the_required_right_and_its_holders() {
    if !geteuid().is_root() {
        return missing("root, to connect as other users");
    }
    let cellar = open_to_all("bus: [DIR/bus]\n");
    let bus = cellar.dir.path().join("bus");
    std::fs::create_dir(&bus).unwrap();
    let path = bus.join("master_event_pub.ipc");
    let _listener = UnixListener::bind(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(MASTER), None).unwrap();
    let mut client = client_of(NOBODY, &cellar.socket());
    let admins = format!(
        "root, the daemon's user (uid 0), the owner of {} (uid {MASTER}) have it",
        path.display()
    );
    assert_eq!(
        denied(&mut client, "store_hold").unwrap(),
        format!("call `store_hold` needs the right `admin`, uid {NOBODY} has `write`: {admins}")
    );
    // Whatever else is missing or wrong: the right is checked before.
    for call in OF_IMPORTS {
        let args = vec![("import", true.into()), ("jid", map(vec![]))];
        let import = client.call(call, map(args)).unwrap_err().to_string();
        assert!(
            import.contains(&format!(
                "call `{call}` for an import needs the right `admin`, uid {NOBODY} has `write`: {admins}"
            )),
            "{import}"
        );
    }
    drop(cellar);
    let cellar = open_to_all("socket_peers: read\n");
    let mut client = client_of(NOBODY, &cellar.socket());
    assert_eq!(
        denied(&mut client, "save_load").unwrap(),
        format!(
            "call `save_load` needs the right `write`, uid {NOBODY} has `read`: `socket_peers: write` in the daemon's \
             configuration gives it to all peers"
        )
    );
}

#[test]
fn the_daemons_own_user_is_an_administrator() {
    if !geteuid().is_root() {
        let cellar = Cellar::start();
        let mut client = cellar.client();
        assert!(
            CALLS
                .iter()
                .all(|call| denied(&mut client, call.name).is_none())
        );
        return;
    }
    // Clients trust the owner of a directory that no other user can replace.
    let dir = tempfile::tempdir_in("/run").unwrap();
    std::os::unix::fs::chown(dir.path(), Some(MASTER), Some(MASTER)).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(dir.path().join("c.yaml"), "socket_mode: \"0777\"\n").unwrap();
    let mut command = serve_command(dir.path());
    command
        .arg("--config")
        .arg(dir.path().join("c.yaml"))
        .uid(MASTER)
        .gid(MASTER);
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let mut child = command.stderr(log).spawn().unwrap();
    let socket = dir.path().join("s.sock");
    wait_for("the daemon", || {
        Client::connect(&socket)
            .ok()?
            .call("status", map(vec![]))
            .ok()
    });
    let found = [MASTER, 0, NOBODY].map(|uid| all_denied(uid, &socket));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found, [vec![], vec![], of_table(&[&ADMIN])]);
}
