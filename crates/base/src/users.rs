//! Local users and groups, from `/etc/passwd` and `/etc/group`. Users and groups of other sources,
//! such as LDAP, are not in these files.

use std::fs;

/// A line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The login name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The number of the primary group.
    pub gid: u32,
    /// The home directory.
    pub home: String,
    /// The login shell.
    pub shell: String,
}

impl User {
    /// The user with this login name.
    pub fn named(name: &str) -> Option<Self> {
        Self::find(&read("/etc/passwd"), |user| user.name == name)
    }

    /// The user with this number.
    pub fn numbered(uid: u32) -> Option<Self> {
        Self::find(&read("/etc/passwd"), |user| user.uid == uid)
    }

    /// The first such user in a string of the format of `/etc/passwd`. Malformed lines are skipped.
    pub fn find(passwd: &str, wanted: impl Fn(&Self) -> bool) -> Option<Self> {
        passwd
            .lines()
            .filter_map(Self::of)
            .find(|user| wanted(user))
    }

    fn of(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, shell] = fields.as_slice() else {
            return None;
        };

        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        let [name, home, shell] = [name, home, shell].map(|field| (*field).to_owned());
        Some(Self {
            name,
            uid,
            gid,
            home,
            shell,
        })
    }

    /// The ids of all its groups.
    pub fn gids(&self) -> Vec<u32> {
        self.gids_in(&read("/etc/group"))
    }

    fn gids_in(&self, groups: &str) -> Vec<u32> {
        let is_member = |members: &str| members.split(',').any(|member| member == self.name);
        let others = groups
            .lines()
            .filter_map(group)
            .filter(|(_, _, members)| is_member(members));
        std::iter::once(self.gid)
            .chain(others.map(|(_, gid, _)| gid))
            .collect()
    }
}

/// Whether a group is known, and no user but these is in it.
pub fn has_no_members_but(gid: u32, uids: &[u32]) -> bool {
    members(gid, &read("/etc/group"), &read("/etc/passwd"))
        .is_some_and(|members| members.iter().all(|uid| uids.contains(uid)))
}

/// The users in a group; `None` if the group, or a user that it lists, is in neither text.
fn members(gid: u32, groups: &str, passwd: &str) -> Option<Vec<u32>> {
    let (.., listed) = groups
        .lines()
        .filter_map(group)
        .find(|(_, id, _)| *id == gid)?;

    let mut found = Vec::new();
    for name in listed.split(',').filter(|name| !name.is_empty()) {
        found.push(User::find(passwd, |user| user.name == name)?.uid);
    }

    // `/etc/group` does not list the users whose own group it is.
    let own = passwd.lines().filter_map(User::of);
    found.extend(own.filter(|user| user.gid == gid).map(|user| user.uid));

    Some(found)
}

/// The id of a group.
pub fn group_id(name: &str) -> Option<u32> {
    read("/etc/group")
        .lines()
        .filter_map(group)
        .find(|(known, ..)| *known == name)
        .map(|(_, gid, _)| gid)
}

/// The name of a group.
pub fn group_name(gid: u32) -> Option<String> {
    read("/etc/group")
        .lines()
        .filter_map(group)
        .find(|(_, known, _)| *known == gid)
        .map(|(name, ..)| name.to_owned())
}

/// Name, id and members of a line of `/etc/group`.
fn group(line: &str) -> Option<(&str, u32, &str)> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, gid, members] = fields.as_slice() else {
        return None;
    };
    Some((name, gid.parse().ok()?, members))
}

/// The contents of a system file; empty if it is unreadable.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_the_fields_of_their_line_and_all_their_groups() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nsalt:x:980:981::/opt/salt:/bin/false\nbroken:x:y:z\nodd:x:1:1:::\n";
        let groups =
            "root:x:0:\nsalt:x:981:\nbroken\nsaltcellar:x:990:ann,salt\nothers:x:991:ann\n";
        let find = |name: &str| User::find(passwd, |user| user.name == name);
        let salt = find("salt").unwrap();
        let fields = (salt.uid, salt.gid, salt.home.as_str(), salt.shell.as_str());
        assert_eq!(fields, (980, 981, "/opt/salt", "/bin/false"));
        assert_eq!(salt.gids_in(groups), [981, 990]);
        assert_eq!((find("broken"), find("sal")), (None, None));
        assert_eq!(find("odd").unwrap().home, "");
        assert_eq!(members(0, groups, passwd), Some(vec![0]));
        assert_eq!(members(981, groups, passwd), Some(vec![980]));
        assert_eq!(members(990, groups, passwd), None, "ann has no line");
        assert_eq!(members(7, groups, passwd), None);
        assert_eq!(User::find(passwd, |user| user.uid == 980), Some(salt));
        assert_eq!(
            (User::named("root").unwrap().uid, group_id("root")),
            (0, Some(0))
        );
        assert_eq!(
            (
                User::numbered(0).unwrap().name.as_str(),
                group_id("no-such-group")
            ),
            ("root", None)
        );
    }
}
