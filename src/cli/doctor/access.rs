//! Who may do what with a file, from its mode and from the users and groups of this machine.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;

/// To read.
pub(super) const READ: u32 = 4;
/// To write; a unix socket is opened by who may write to it.
pub(super) const WRITE: u32 = 2;
/// To pass through a directory.
pub(super) const ENTER: u32 = 1;

/// Somebody, with all groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    /// As people know them: a name, or `uid 1000`.
    pub(super) name: String,
    pub(super) uid: u32,
    gids: Vec<u32>,
}

impl Who {
    /// The user of that name; `None` if this machine does not know it (another source than the files may).
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::find(&read("/etc/passwd"), &read("/etc/group"), |user, _| user == name)
    }

    /// The user with that number. One without a name is in no groups.
    pub(super) fn numbered(uid: u32) -> Self {
        Self::find(&read("/etc/passwd"), &read("/etc/group"), |_, number| number == uid).unwrap_or(Self {
            name: format!("uid {uid}"),
            uid,
            gids: Vec::new(),
        })
    }

    fn find(passwd: &str, groups: &str, is_meant: impl Fn(&str, u32) -> bool) -> Option<Self> {
        let (name, uid, gid) = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let uid = fields.nth(1)?.parse().ok()?;
            is_meant(name, uid).then_some((name, uid, fields.next()?.parse().ok()?))
        })?;
        let mut gids = vec![gid];
        gids.extend(groups.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let gid: u32 = fields.nth(2)?.parse().ok()?;
            fields.next()?.split(',').any(|member| member == name).then_some(gid)
        }));
        Some(Self { name: name.to_owned(), uid, gids })
    }

    /// Does the mode of this file let them do all of `wanted`? Nothing is refused to root.
    pub(super) fn may(&self, file: &Metadata, wanted: u32) -> bool {
        self.may_by(file.uid(), file.gid(), file.mode(), wanted)
    }

    fn may_by(&self, uid: u32, gid: u32, mode: u32, wanted: u32) -> bool {
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

/// A file of the system; one that cannot be read names nobody.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_rights_of_the_first_that_fits_of_owner_group_and_others() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nsalt:x:980:981::/:/bin/false\nbroken:x:y:z\n";
        let groups = "root:x:0:\nsalt:x:981:\nsaltcellar:x:990:ann,salt\nothers:x:991:ann\n";
        let who = |name: &str| Who::find(passwd, groups, |user, _| user == name);
        let salt = who("salt").unwrap();
        assert_eq!(salt, Who { name: "salt".to_owned(), uid: 980, gids: vec![981, 990] });
        assert_eq!(who("ann"), None);
        assert!(salt.may_by(980, 0, 0o600, READ | WRITE));
        assert!(!salt.may_by(980, 981, 0o077, READ), "the owner's bits count for the owner");
        assert!(salt.may_by(0, 990, 0o660, READ | WRITE));
        assert!(!salt.may_by(0, 991, 0o660, READ));
        assert!(salt.may_by(0, 991, 0o664, READ) && !salt.may_by(0, 991, 0o664, WRITE));
        assert!(who("root").unwrap().may_by(980, 981, 0, READ | WRITE | ENTER));
    }
}
