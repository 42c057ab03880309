//! The users that the command line trusts to serve the daemon's socket: the same rule as in the
//! Python extension (`utils/peer.py`).
//!
//! A path is no proof: a user with write access to the socket's directory can place another socket
//! there and receive all requests. The kernel knows the user that called `listen(2)`. Trusted are
//! root, the user of this process, and the owner of the socket's directory, if no other user can
//! replace that directory.
//!
//! # Invariant
//!
//! The command line sends nothing to a socket that another user serves.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::base::users::User;

/// The reason not to trust the user that serves `path`; `None` if the user is trusted.
pub(super) fn objection(connection: impl AsFd, path: &Path) -> io::Result<Option<String>> {
    // The kernel notes who called `listen(2)`: the daemon, or systemd, which is root.
    let uid = socket_peercred(connection)?.uid.as_raw();
    if uid == 0 || uid == geteuid().as_raw() || directory_owner(path) == Some(uid) {
        return Ok(None);
    }

    let user = User::numbered(uid).map_or_else(|| uid.to_string(), |user| user.name);
    Ok(Some(format!(
        "user {user} serves this socket and is not trusted, nothing was sent (if the daemon runs as that user, give it a socket in \
         a directory that belongs to {user} and that only root can replace)"
    )))
}

/// The owner of a socket's directory; `None` if another user could have created that directory.
fn directory_owner(path: &Path) -> Option<u32> {
    let directory = std::path::absolute(path)
        .ok()?
        .parent()?
        .canonicalize()
        .ok()?;
    // A directory is as safe as every directory above it.
    let owner = fs::metadata(&directory).ok()?.uid();

    let trusted = [0, owner, geteuid().as_raw()];
    for above in directory.ancestors().skip(1) {
        let found = fs::metadata(above).ok()?;
        // The sticky bit does not help: it protects existing names, and any user could have created
        // the name first.
        if !trusted.contains(&found.uid()) || found.mode() & 0o022 != 0 {
            return None;
        }
    }

    Some(owner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;
    use crate::testkit::missing;

    const NOBODY: u32 = 65534;

    #[test]
    fn the_owner_of_a_directory_that_another_user_could_replace_is_not_trusted() {
        if !geteuid().is_root() {
            return missing("root, to give directories to others");
        }
        // Above /run only root can write.
        let dir = tempfile::tempdir_in("/run").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let made = dir.path().join("saltcellar");
        fs::create_dir(&made).unwrap();
        chown(&made, Some(NOBODY), None).unwrap();
        let socket = made.join("s.sock");
        assert_eq!(directory_owner(&socket), Some(NOBODY));
        for mode in [0o777, 0o1777, 0o770] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(directory_owner(&socket), None, "{mode:o}");
            let link = tempfile::tempdir_in("/run").unwrap();
            std::os::unix::fs::symlink(&made, link.path().join("link")).unwrap();
            assert_eq!(
                directory_owner(&link.path().join("link/s.sock")),
                None,
                "through a link, {mode:o}"
            );
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(dir.path(), Some(NOBODY - 1), None).unwrap();
        assert_eq!(
            directory_owner(&socket),
            None,
            "a third user can replace the directory"
        );
        assert_eq!(directory_owner(&dir.path().join("gone/s.sock")), None);
    }
}
