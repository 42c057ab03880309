//! Access rights of a user to a file, by the file's mode and the users and groups of this host.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

use crate::base::users;

pub(super) const READ: u32 = 4;
/// Write permission; connecting to a unix socket requires it.
pub(super) const WRITE: u32 = 2;
/// Search permission on a directory.
pub(super) const ENTER: u32 = 1;

/// A user with all its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    /// A name, or `uid 1000`.
    pub(super) name: String,
    pub(super) uid: u32,
    gids: Vec<u32>,
}

impl User {
    /// The user with that name; `None` if `/etc/passwd` lacks it (NSS allows other sources).
    pub(super) fn named(name: &str) -> Option<Self> {
        users::User::named(name).map(Self::of)
    }

    /// The user with that uid. A user without a name has no groups.
    pub(super) fn numbered(uid: u32) -> Self {
        let unnamed = || Self {
            name: format!("uid {uid}"),
            uid,
            gids: Vec::new(),
        };
        users::User::numbered(uid).map_or_else(unnamed, Self::of)
    }

    fn of(user: users::User) -> Self {
        Self {
            gids: user.gids(),
            name: user.name,
            uid: user.uid,
        }
    }

    /// Whether the mode of this file grants all of `wanted`. Root has all rights.
    pub(super) fn allows(&self, file: &Metadata, wanted: u32) -> bool {
        self.allows_mode(file.uid(), file.gid(), file.mode(), wanted)
    }

    fn allows_mode(&self, uid: u32, gid: u32, mode: u32, wanted: u32) -> bool {
        // As the kernel does: the first class that fits decides, even if a later one grants more.
        let bits = if self.uid == 0 {
            return true;
        } else if self.uid == uid {
            mode >> 6
        } else if self.gids.contains(&gid) {
            mode >> 3
        } else {
            mode
        };

        bits & wanted == wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_match_of_owner_group_and_others_decides() {
        let user = |uid, gids: &[u32]| User {
            name: String::new(),
            uid,
            gids: gids.to_vec(),
        };
        let salt = user(980, &[981, 990]);
        assert!(salt.allows_mode(980, 0, 0o600, READ | WRITE));
        assert!(
            !salt.allows_mode(980, 981, 0o077, READ),
            "the owner's bits count for the owner"
        );
        assert!(salt.allows_mode(0, 990, 0o660, READ | WRITE));
        assert!(!salt.allows_mode(0, 991, 0o660, READ));
        assert!(salt.allows_mode(0, 991, 0o664, READ) && !salt.allows_mode(0, 991, 0o664, WRITE));
        assert!(user(0, &[0]).allows_mode(980, 981, 0, READ | WRITE | ENTER));
    }
}
