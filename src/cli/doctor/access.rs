//! Access rights of a user to a file, by the file's mode and the users and groups of this machine.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;

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
    /// The user with that name; `None` if `/etc/passwd` lacks it (NSS allows have other sources).
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::find(&read("/etc/passwd"), &read("/etc/group"), |user, _| user == name)
    }

    /// The user with that uid. A user without a name has no groups.
    pub(super) fn numbered(uid: u32) -> Self {
        Self::find(&read("/etc/passwd"), &read("/etc/group"), |_, number| number == uid).unwrap_or(Self {
            name: format!("uid {uid}"),
            uid,
            gids: Vec::new(),
        })
    }

    fn find(passwd: &str, groups: &str, matches: impl Fn(&str, u32) -> bool) -> Option<Self> {
        let (name, uid, gid) = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let uid = fields.nth(1)?.parse().ok()?;
            matches(name, uid).then_some((name, uid, fields.next()?.parse().ok()?))
        })?;
        let mut gids = vec![gid];
        gids.extend(groups.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let gid: u32 = fields.nth(2)?.parse().ok()?;
            fields.next()?.split(',').any(|member| member == name).then_some(gid)
        }));
        Some(Self { name: name.to_owned(), uid, gids })
    }

    /// Whether the mode of this file grants all of `wanted`. Root has all rights.
    pub(super) fn allows(&self, file: &Metadata, wanted: u32) -> bool {
        self.allows_mode(file.uid(), file.gid(), file.mode(), wanted)
    }

    fn allows_mode(&self, uid: u32, gid: u32, mode: u32, wanted: u32) -> bool {
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

/// The text of a system file; empty if it is unreadable.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_match_of_owner_group_and_others_decides() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nsalt:x:980:981::/:/bin/false\nbroken:x:y:z\n";
        let groups = "root:x:0:\nsalt:x:981:\nsaltcellar:x:990:ann,salt\nothers:x:991:ann\n";
        let who = |name: &str| User::find(passwd, groups, |user, _| user == name);
        let salt = who("salt").unwrap();
        assert_eq!(salt, User { name: "salt".to_owned(), uid: 980, gids: vec![981, 990] });
        assert_eq!(who("ann"), None);
        assert!(salt.allows_mode(980, 0, 0o600, READ | WRITE));
        assert!(!salt.allows_mode(980, 981, 0o077, READ), "the owner's bits count for the owner");
        assert!(salt.allows_mode(0, 990, 0o660, READ | WRITE));
        assert!(!salt.allows_mode(0, 991, 0o660, READ));
        assert!(salt.allows_mode(0, 991, 0o664, READ) && !salt.allows_mode(0, 991, 0o664, WRITE));
        assert!(who("root").unwrap().allows_mode(980, 981, 0, READ | WRITE | ENTER));
    }
}
