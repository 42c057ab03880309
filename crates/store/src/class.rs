//! Retention classes: chains of segments with their own limits, and the assignment of entries to
//! them.
//!
//! The table [`Classes`] is built when the store is opened: `jobs` and `events`, which always
//! exist, then the other configured classes, then classes found only on disk. The latter are
//! read-only.
//!
//! # Assignment
//!
//! The first class with a matching rule gets the entry. A function rule applies to jobs as a whole.
//! Loads, the event `new` and returns name their function; progress events, end times and a
//! syndic's minions do not, so the classes of recent jobs are remembered for them, up to a limit.
//! Entries of a forgotten job go to `jobs`; lookups search every class, so they are still found.
//!
//! # Invariant
//!
//! A [`Class`] is an index into the table of this run. On disk a class is identified by its name;
//! the next run may assign another index. Only the indexes of `jobs` and `events` are fixed.

use std::collections::VecDeque;
use std::sync::Arc;

use salt_sls::Glob;

use saltcellar_base::limits::{FUNCTIONS_REMEMBERED, JOB_CLASSES_REMEMBERED};
use saltcellar_model::{
    ClassRule, ClassRules, EVENTS, Entry, FastMap, JOBS, JidKey, Keep, Kind, MINION_SHARE, OVERFLOW,
};

/// A class, by its index in [`Classes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(u8);

impl Class {
    /// Everything that belongs to a job: loads, returns, `salt/job/..`, `salt/run/..`,
    /// `salt/wheel/..`.
    pub(crate) const JOBS: Class = Class(0);
    /// All other events.
    pub(crate) const EVENTS: Class = Class(1);

    /// Index into lists with one item per class.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The table of classes.
#[derive(Debug, Clone)]
pub struct Classes {
    rows: Vec<Row>,
    /// Number of configured classes, which accept entries; the rest exist only on disk.
    configured: usize,
    order: Vec<Class>,
    matcher: Arc<Matcher>,
    /// See `store.minion_share`.
    share_percent: u64,
}

#[derive(Debug, Clone)]
struct Row {
    name: Arc<str>,
    keep: Keep,
    /// The class whose overflow this is (see [`super::shares`]).
    overflow_of: Option<Class>,
}

impl Default for Classes {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl Classes {
    /// Builds the table; adds `jobs` and `events` if missing. The configuration guarantees valid,
    /// unique names and at most [`saltcellar_base::limits::CLASSES_MAX`] classes.
    pub fn new(rules: &[ClassRules]) -> Self {
        // The fixed classes come first, whatever the order of the configuration: their indexes are
        // constants.
        let fixed = [ClassRules::jobs(), ClassRules::events()];
        let configured =
            |fixed: &ClassRules| rules.iter().find(|class| class.name == fixed.name).cloned();
        let others = rules
            .iter()
            .filter(|class| fixed.iter().all(|f| f.name != class.name));
        let all: Vec<ClassRules> = fixed
            .iter()
            .map(|f| configured(f).unwrap_or_else(|| f.clone()))
            .chain(others.cloned())
            .collect();

        let rows = all.iter().map(|class| Row {
            name: class.name.as_str().into(),
            keep: class.keep,
            overflow_of: None,
        });

        // `Class` is a byte; the configuration allows far fewer classes.
        let mut rows: Vec<Row> = rows.take(usize::from(u8::MAX)).collect();
        let place = |name: &str| {
            (0..u8::MAX)
                .map(Class)
                .zip(&rows)
                .find(|(_, row)| *row.name == *name)
        };

        // Only a limit by bytes or entries lets one minion evict the entries of others.
        let limited: Vec<Row> = (0..u8::MAX)
            .map(Class)
            .zip(&rows)
            .filter(|(_, row)| row.keep.bytes.is_some() || row.keep.entries.is_some())
            .map(|(class, row)| Row {
                name: format!("{}{OVERFLOW}", row.name).into(),
                keep: row.keep,
                overflow_of: Some(class),
            })
            .collect();

        // Unless the configuration lists them, `events` and `jobs` are emptied last, in this order.
        let listed = rules.iter().map(|class| class.name.as_str());
        let unlisted = [EVENTS, JOBS]
            .into_iter()
            .filter(|name| rules.iter().all(|class| class.name != *name));
        let proper: Vec<Class> = listed
            .chain(unlisted)
            .filter_map(|name| Some(place(name)?.0))
            .collect();

        let first_overflow = rows.len();
        rows.extend(limited);
        rows.truncate(usize::from(u8::MAX));
        // Those who take the most give first: overflows before the classes of the configuration.
        let order = (0..u8::MAX)
            .map(Class)
            .take(rows.len())
            .skip(first_overflow)
            .chain(proper)
            .collect();

        Self {
            configured: rows.len(),
            order,
            rows,
            matcher: Arc::new(Matcher::new(&all)),
            share_percent: MINION_SHARE,
        }
    }

    /// With another share of a minion.
    #[must_use]
    pub fn with_share(mut self, percent: u64) -> Self {
        self.share_percent = percent;
        self
    }

    pub(crate) fn share_percent(&self) -> u64 {
        self.share_percent
    }

    /// The classes with an overflow, and these.
    pub(crate) fn overflows(&self) -> impl Iterator<Item = (Class, Class)> + use<> {
        let pairs = self.all().filter_map(|overflow| {
            let row = self.rows.get(overflow.index())?;
            Some((row.overflow_of?, overflow))
        });
        // A share of everything is no share: nothing is kept apart.
        let off = self.share_percent >= 100;
        pairs.filter(|_| !off).collect::<Vec<_>>().into_iter()
    }

    /// A class and its overflow, if it is either.
    pub(crate) fn pair_of(&self, class: Class) -> Option<(Class, Class)> {
        self.overflows()
            .find(|(proper, overflow)| *proper == class || *overflow == class)
    }

    /// All classes.
    pub fn all(&self) -> impl Iterator<Item = Class> + use<> {
        (0..u8::try_from(self.rows.len()).expect("classes are counted when they are added"))
            .map(Class)
    }

    /// The configured classes; their indexes come first.
    pub(crate) fn configured(&self) -> impl Iterator<Item = Class> + use<> {
        self.all().take(self.configured)
    }

    /// Whether the class accepts entries.
    pub(crate) fn is_configured(&self, class: Class) -> bool {
        class.index() < self.configured
    }

    /// The order in which retention empties classes when the disk is nearly full: classes that
    /// exist only on disk, then configured classes.
    pub(crate) fn drop_order(&self) -> impl Iterator<Item = Class> + use<> {
        let found = self.all().skip(self.configured).collect::<Vec<_>>();
        found.into_iter().chain(self.order.clone())
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The name of the class and of its directory.
    pub fn name(&self, class: Class) -> Arc<str> {
        self.rows
            .get(class.index())
            .map_or_else(|| "".into(), |row| row.name.clone())
    }

    /// Retention limits; a class that exists only on disk takes the limits of `events`.
    pub fn keep(&self, class: Class) -> Keep {
        let row = self
            .rows
            .get(class.index())
            .or_else(|| self.rows.get(Class::EVENTS.index()));
        row.map_or_else(|| ClassRules::events().keep, |row| row.keep)
    }

    /// The class of this name.
    pub fn find(&self, name: &str) -> Option<Class> {
        self.all().find(|class| {
            self.rows
                .get(class.index())
                .is_some_and(|row| *row.name == *name)
        })
    }

    /// Adds a class that exists only on disk; false if the table is full.
    pub(crate) fn add_found(&mut self, name: &str) -> bool {
        let room = self.rows.len() < usize::from(u8::MAX);

        if room {
            // An overflow keeps what its class keeps, even after that has lost its limits.
            let of = name.strip_suffix(OVERFLOW).and_then(|of| self.find(of));
            self.rows.push(Row {
                name: name.into(),
                keep: self.keep(of.unwrap_or(Class::EVENTS)),
                overflow_of: None,
            });
        }
        room
    }
}

/// The rules of all classes, in the order of the configuration.
#[derive(Debug, Default)]
struct Matcher {
    /// Rules without a tag; their result is cached per function.
    by_fun: Vec<(Class, Glob)>,
    by_tag: Vec<TagRule>,
}

#[derive(Debug)]
struct TagRule {
    class: Class,
    tag: Glob,
    fun: Option<Glob>,
    /// The literal prefix of the pattern.
    prefix: Vec<u8>,
}

impl Matcher {
    fn new(all: &[ClassRules]) -> Self {
        let mut matcher = Self::default();
        for (class, rules) in (0..u8::MAX).map(Class).zip(all) {
            for ClassRule { fun, tag } in &rules.rules {
                match (fun, tag) {
                    (Some(fun), None) => matcher.by_fun.push((class, fun.clone())),
                    // A literal prefix excludes most tags with one comparison.
                    (fun, Some(tag)) => {
                        let prefix: String = tag
                            .as_str()
                            .chars()
                            .take_while(|c| !"*?[".contains(*c))
                            .collect();

                        let (tag, fun) = (tag.clone(), fun.clone());
                        matcher.by_tag.push(TagRule {
                            class,
                            tag,
                            fun,
                            prefix: prefix.into_bytes(),
                        });
                    }
                    (None, None) => {}
                }
            }
        }
        matcher
    }

    fn class_of_fun(&self, fun: &str) -> Option<Class> {
        self.by_fun
            .iter()
            .find(|(_, glob)| glob.matches(fun))
            .map(|(class, _)| *class)
    }

    /// The first class with a rule that matches this tag, among the classes before `than`.
    fn class_of_tag(&self, entry: &Entry<'_>, than: Option<Class>) -> Option<Class> {
        // The rule of an earlier class wins, whichever kind it is; classes are in order.
        let before = |rule: &&TagRule| than.is_none_or(|than| rule.class < than);
        let takes = |rule: &&TagRule| {
            entry.tag.starts_with(&rule.prefix)
                && rule.fun.as_ref().is_none_or(|glob| glob.matches(entry.fun))
                && rule.tag.matches_bytes(entry.tag)
        };

        self.by_tag
            .iter()
            .take_while(before)
            .find(takes)
            .map(|rule| rule.class)
    }
}

/// Assigns entries to classes; stateful, one per thread.
#[derive(Debug)]
pub(crate) struct Classifier {
    matcher: Arc<Matcher>,
    /// Cached results of function rules.
    functions: FastMap<Box<str>, Option<Class>>,
    /// Jobs matched by a function rule.
    jobs: FastMap<JidKey, Class>,
    /// Their keys, oldest first.
    order: VecDeque<JidKey>,
    last: Option<JidKey>,
}

impl Classifier {
    pub(crate) fn new(classes: &Classes) -> Self {
        let matcher = classes.matcher.clone();
        let (functions, jobs) = (FastMap::default(), FastMap::default());
        Self {
            matcher,
            functions,
            jobs,
            order: VecDeque::new(),
            last: None,
        }
    }

    #[inline]
    pub(crate) fn class_of(&mut self, entry: &Entry<'_>) -> Class {
        let is_event = matches!(
            entry.kind,
            Kind::Event | Kind::Gap | Kind::Reaction | Kind::SeenOnBus
        );

        let rest = if is_event && entry.jid.is_empty() {
            Class::EVENTS
        } else {
            Class::JOBS
        };

        // Without rules, the usual case, nothing is looked up. Thorium's register is always in
        // `jobs`.
        if self.matcher.by_fun.is_empty() && self.matcher.by_tag.is_empty()
            || entry.kind == Kind::Register
        {
            return rest;
        }
        self.by_rules(entry).unwrap_or(rest)
    }

    fn by_rules(&mut self, entry: &Entry<'_>) -> Option<Class> {
        let by_fun = if self.matcher.by_fun.is_empty() {
            None
        } else {
            self.by_function(entry)
        };

        // A rule by tag counts only if its class comes before the function's class.
        let by_tag = if entry.tag.is_empty() {
            None
        } else {
            self.matcher.class_of_tag(entry, by_fun)
        };
        by_tag.or(by_fun)
    }

    fn by_function(&mut self, entry: &Entry<'_>) -> Option<Class> {
        // An entry without a function belongs where its job went.
        if entry.fun.is_empty() {
            return if entry.jid.is_empty() {
                None
            } else {
                self.jobs.get(&JidKey::of(entry.jid)).copied()
            };
        }

        let class = if let Some(known) = self.functions.get(entry.fun) {
            *known
        } else {
            // Rare enough to start over: fleets run tens of functions, and starting over only
            // repeats some matching.
            if self.functions.len() >= FUNCTIONS_REMEMBERED {
                self.functions.clear();
            }
            let class = self.matcher.class_of_fun(entry.fun);
            self.functions.insert(entry.fun.into(), class);
            class
        };

        // For later entries of the job that do not name the function.
        if let Some(class) = class
            && !entry.jid.is_empty()
        {
            self.remember(JidKey::of(entry.jid), class);
        }
        class
    }

    fn remember(&mut self, job: JidKey, class: Class) {
        // Returns of one job usually follow each other.
        if self.last == Some(job) {
            return;
        }

        self.last = Some(job);
        if self.jobs.insert(job, class).is_none() {
            self.order.push_back(job);
        }

        if self.order.len() > JOB_CLASSES_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.jobs.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saltcellar_base::clock::Micros;
    use saltcellar_model::{Age, Flags, Source};

    fn rule(fun: &str, tag: &str) -> ClassRule {
        let glob = |text: &str| (!text.is_empty()).then(|| Glob::new(text));
        ClassRule {
            fun: glob(fun),
            tag: glob(tag),
        }
    }

    fn class(name: &str, rules: Vec<ClassRule>) -> ClassRules {
        let keep = Keep {
            age: Age::Forever,
            bytes: None,
            entries: None,
        };
        ClassRules {
            name: name.to_owned(),
            rules,
            keep,
        }
    }

    fn entry<'a>(kind: Kind, tag: &'a str, jid: &'a str, fun: &'a str) -> Entry<'a> {
        let (source, flags, at) = (Source::Bus, Flags::default(), Micros(0));
        Entry {
            kind,
            source,
            origin: "",
            number: 0,
            flags,
            at,
            tag: tag.as_bytes(),
            jid,
            minion: "",
            fun,
            retcode: 0,
            body: b"",
        }
    }

    /// Checks the classes of consecutive entries.
    fn check(classes: &[ClassRules], entries: &[(Kind, &str, &str, &str, &str)]) {
        let table = Classes::new(classes);
        let mut classifier = Classifier::new(&table);
        for &(kind, tag, jid, fun, expected) in entries {
            let class = classifier.class_of(&entry(kind, tag, jid, fun));
            assert_eq!(&*table.name(class), expected, "{kind:?} {tag} {jid} {fun}");
        }
    }

    #[test]
    fn without_rules_job_entries_are_separated_from_other_events() {
        check(
            &[],
            &[
                (Kind::Event, "salt/auth", "", "", "events"),
                (Kind::Gap, saltcellar_model::GAP_TAG, "", "", "events"),
                (Kind::Event, "salt/job/1/prog/web1/1", "1", "", "jobs"),
                (
                    Kind::Return,
                    "salt/job/1/ret/web1",
                    "1",
                    "test.ping",
                    "jobs",
                ),
                (Kind::Load, "", "1", "test.ping", "jobs"),
                (Kind::Register, "", "", "", "jobs"),
            ],
        );
    }

    #[test]
    fn a_function_rule_applies_to_jobs_as_a_whole() {
        let chatter = class("chatter", vec![rule("saltutil.*", "")]);
        check(
            &[chatter],
            &[
                (Kind::Load, "", "1", "saltutil.find_job", "chatter"),
                (
                    Kind::JobNew,
                    "salt/job/1/new",
                    "1",
                    "saltutil.find_job",
                    "chatter",
                ),
                (Kind::Load, "", "2", "state.apply", "jobs"),
                (
                    Kind::Return,
                    "salt/job/1/ret/web1",
                    "1",
                    "saltutil.find_job",
                    "chatter",
                ),
                (Kind::Event, "salt/job/1/prog/web1/1", "1", "", "chatter"),
                (Kind::Event, "salt/job/2/prog/web1/1", "2", "", "jobs"),
                (Kind::Endtime, "", "1", "", "chatter"),
                (Kind::Endtime, "", "2", "", "jobs"),
                (Kind::Event, "salt/auth", "", "", "events"),
            ],
        );
    }

    #[test]
    fn the_first_class_with_a_matching_rule_gets_the_entry() {
        let first = class(
            "first",
            vec![rule("", "salt/job/*/ret/db*"), rule("test.ping", "")],
        );
        let second = class(
            "second",
            vec![
                rule("test.*", ""),
                rule("cmd.*", "*/ret/web1"),
                rule("", "salt/auth"),
                rule("", "salt/job/4/*"),
            ],
        );
        check(
            &[first, class("events", vec![]), second],
            &[
                (
                    Kind::Return,
                    "salt/job/1/ret/db1",
                    "1",
                    "test.echo",
                    "first",
                ),
                (
                    Kind::Return,
                    "salt/job/1/ret/web1",
                    "1",
                    "test.echo",
                    "second",
                ),
                (
                    Kind::Return,
                    "salt/job/2/ret/web1",
                    "2",
                    "test.ping",
                    "first",
                ),
                (
                    Kind::Return,
                    "salt/job/3/ret/web1",
                    "3",
                    "cmd.run",
                    "second",
                ),
                (Kind::Return, "salt/job/3/ret/web2", "3", "cmd.run", "jobs"),
                (
                    Kind::Return,
                    "salt/job/4/ret/web1",
                    "4",
                    "test.ping",
                    "first",
                ),
                (Kind::Event, "salt/auth", "", "", "second"),
                (Kind::Event, "salt/authx", "", "", "events"),
            ],
        );
    }

    #[test]
    fn caches_are_bounded() {
        let table = Classes::new(&[class("chatter", vec![rule("saltutil.*", "")])]);
        let mut classifier = Classifier::new(&table);
        for n in 0..2 * JOB_CLASSES_REMEMBERED {
            let (jid, fun) = (n.to_string(), format!("saltutil.f{n}"));
            classifier.class_of(&entry(Kind::Load, "", &jid, &fun));
        }
        assert!(classifier.functions.len() <= FUNCTIONS_REMEMBERED);
        assert_eq!(classifier.jobs.len(), JOB_CLASSES_REMEMBERED);
        assert_eq!(classifier.order.len(), JOB_CLASSES_REMEMBERED);
        let newest = (2 * JOB_CLASSES_REMEMBERED - 1).to_string();
        assert_ne!(
            classifier.class_of(&entry(Kind::Endtime, "", &newest, "")),
            Class::JOBS
        );
        assert_eq!(
            classifier.class_of(&entry(Kind::Endtime, "", "0", "")),
            Class::JOBS
        );
    }

    #[test]
    fn jobs_and_events_always_exist_and_keep_their_indexes() {
        let mut classes =
            Classes::new(&[class("events", vec![]), class("own", vec![rule("x", "")])]);
        assert!(classes.add_found("old"));
        assert_eq!(classes.find("jobs"), Some(Class::JOBS));
        assert_eq!(classes.find("events"), Some(Class::EVENTS));
        let old = classes.find("old").unwrap();
        assert_eq!(
            (&*classes.name(old), classes.is_configured(old)),
            ("old", false)
        );
        assert_eq!(classes.keep(old), classes.keep(Class::EVENTS));
        assert_eq!(classes.keep(Class::JOBS), ClassRules::jobs().keep);
        assert_eq!(
            (classes.all().count(), classes.configured().count()),
            (4, 3)
        );
    }

    #[test]
    fn limited_classes_have_an_overflow_that_gives_first() {
        let limited = |name: &str| ClassRules {
            keep: Keep {
                age: Age::Forever,
                bytes: Some(1 << 20),
                entries: None,
            },
            ..class(name, vec![rule("x", "")])
        };
        let own = [limited("own")];
        let mut classes = Classes::new(&own);
        let [(proper, overflow)] = classes.overflows().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(classes.find("own"), Some(proper));
        assert_eq!(classes.find("own-over"), Some(overflow));
        assert_eq!(classes.keep(overflow), classes.keep(proper));
        assert!(classes.is_configured(overflow));
        assert_eq!(classes.drop_order().next(), Some(overflow));
        // An overflow whose class no longer has limits keeps as much as the class.
        assert!(classes.add_found("jobs-over"));
        let left = classes.find("jobs-over").unwrap();
        assert_eq!(classes.keep(left), ClassRules::jobs().keep);
        assert!(!classes.is_configured(left) && classes.pair_of(left).is_none());
        assert_eq!(Classes::new(&own).with_share(100).overflows().count(), 0);
    }

    #[test]
    fn a_full_table_rejects_further_classes() {
        let mut classes = Classes::default();
        let added = (0..1000)
            .filter(|n| classes.add_found(&format!("c{n}")))
            .count();
        assert_eq!((added, classes.len()), (253, 255));
        assert_eq!(classes.all().count(), 255);
    }
}
