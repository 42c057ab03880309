//! Salt's job cache: the files of `local_cache`.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, UNIX_EPOCH};

use rmpv::Value;
use serde_json::Value as Json;

use super::entries::map;

/// When the files were written: 2026-11-01 12:00:07.5 UTC, in microseconds.
pub const LATER: u64 = 1_793_534_407_500_000;

/// Salt's tree of jobs.
pub struct JobTree(pub PathBuf);

impl JobTree {
    fn job_dir(&self, jid: &str) -> PathBuf {
        let hash = ring::digest::digest(&ring::digest::SHA256, jid.as_bytes());
        let digit =
            |digit: u8| char::from_digit(u32::from(digit), 16).expect("the tree can be written");
        let digits: String = hash
            .as_ref()
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
            .collect();
        let (first, rest) = digits.split_at(2);
        self.0.join(first).join(rest)
    }

    /// Writes a file of a job, and returns its path.
    pub fn put(&self, jid: &str, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.job_dir(jid).join(name);
        fs::create_dir_all(path.parent().expect("the tree can be written"))
            .expect("the tree can be written");
        fs::write(&path, bytes).expect("the tree can be written");
        let file = fs::File::options()
            .write(true)
            .open(&path)
            .expect("the tree can be written");
        file.set_modified(UNIX_EPOCH + Duration::from_micros(LATER))
            .expect("the tree can be written");
        path
    }

    /// Like [`Self::put`], of a value.
    pub fn put_value(&self, jid: &str, name: &str, value: &Value) -> PathBuf {
        self.put(jid, name, &packed(value))
    }

    /// Writes a complete job with a return of each minion.
    pub fn put_job(&self, jid: &str, minions: &[&str]) {
        self.put(jid, "jid", jid.as_bytes());
        self.put_value(jid, ".load.p", &load(jid));
        let names = minions.iter().map(|minion| Value::from(*minion)).collect();
        self.put_value(jid, ".minions.p", &Value::Array(names));
        for minion in minions {
            let answer = vec![
                ("return", format!("{minion} of {jid}").into()),
                ("retcode", 0.into()),
                ("success", true.into()),
            ];
            self.put_value(jid, &format!("{minion}/return.p"), &map(answer));
        }
    }
}

/// The load of a job, with arguments that JSON lacks.
pub fn load(jid: &str) -> Value {
    map(vec![
        ("cmd", "publish".into()),
        ("tgt", "*".into()),
        ("fun", "test.ping".into()),
        (
            "arg",
            Value::Array(vec![
                Value::Binary(vec![0xff]),
                Value::Ext(78, b"20260203T04:05:06.000789".to_vec()),
            ]),
        ),
        ("tgt_type", "glob".into()),
        ("ret", "".into()),
        ("jid", jid.into()),
        ("user", "root".into()),
    ])
}

/// A value in msgpack.
pub fn packed(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).expect("a vector takes it");
    bytes
}

/// The JSON that an import or an export printed.
pub fn document(output: &Output) -> Json {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Its numbers of stored, known and skipped items.
pub fn sums(output: &Output) -> [u64; 3] {
    let found = document(output);
    ["stored", "known", "skipped"].map(|key| {
        let number = found.get(key).and_then(Json::as_u64);
        number.unwrap_or_else(|| panic!("no number `{key}`: {found}"))
    })
}
