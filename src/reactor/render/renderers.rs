//! A site's own renderers: modules in the directories from which Salt loads renderers besides its
//! own.
//!
//! A module can replace one of Salt's (`renderers/yaml.py`), and its name is not always the name of
//! its file (`__virtualname__`). Therefore if a directory contains modules, Salt's Python says
//! which renderers there are and whose. The directories are looked at again after
//! [`limits::REACTOR_FILES_TRUSTED`]; after a change Salt is asked again and reloads its renderers.
//!
//! Installed packages (extensions of Salt) can also have such modules. Without modules in the
//! directories Python is asked once whether there is such a package, without loading Salt; only if
//! there is one, Salt lists its renderers.
//!
//! Salt is asked in a separate thread, because a Python that hangs takes up to
//! [`limits::REACTOR_HELPER_START_TIME`], and files of Salt's renderers do not depend on it.
//! Renderings wait for the list, but not longer than [`limits::REACTOR_RENDERERS_WAIT`]; then the
//! names of the modules count until it comes.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::base::limits;
use crate::config::salt_master::SaltMaster;
use crate::reactor::helper::salt::{Salt, SaltError};

/// Renderers with a native implementation.
pub(super) const NATIVE: [&str; 3] = ["jinja", "yaml", "json"];

/// The other renderers of Salt 3008.3. Some require a Python module.
pub(super) const SALT_S: [&str; 10] = [
    "gpg",
    "mako",
    "msgpack",
    "nacl",
    "pass",
    "py",
    "pyobjects",
    "stateconf",
    "toml",
    "yamlex",
];

/// The renderers for one state of the directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Renderers {
    /// Identifies the state; 0 without any module in the directories.
    pub(crate) state: u64,
    known: Known,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    /// Only Salt's renderers.
    SaltS,
    /// By name, with true for a renderer of the site.
    Listed(HashMap<String, bool>),
    /// Salt's Python was not asked or did not respond. The names of the modules in the directories.
    Guessed(Vec<String>),
}

impl Default for Known {
    fn default() -> Self {
        Self::Guessed(Vec::new())
    }
}

/// The origin of a renderer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Salt,
    Site,
}

impl Renderers {
    /// The origin of a renderer; `None` if there is none of this name.
    pub(crate) fn owner(&self, name: &str) -> Option<Owner> {
        let of_salt = || {
            let is_known = NATIVE.contains(&name) || SALT_S.contains(&name);
            is_known.then_some(Owner::Salt)
        };

        match &self.known {
            // The list is complete, so a renderer that it lacks cannot be used.
            Known::Listed(all) => match all.get(name) {
                Some(true) => Some(Owner::Site),
                Some(false) => Some(Owner::Salt),
                None => None,
            },
            // A module is usually named like its renderer.
            Known::Guessed(names) if names.iter().any(|own| own == name) => Some(Owner::Site),
            Known::SaltS | Known::Guessed(_) => of_salt(),
        }
    }
}

/// The directories of a site, and the renderers for their last state.
#[derive(Debug)]
pub(crate) struct SiteRenderers {
    dirs: Vec<PathBuf>,
    /// How long a rendering waits for Salt's list.
    patience: Duration,
    /// Lock order: no other lock is taken under it.
    last: Mutex<Last>,
    /// Signals that Salt has responded.
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Last {
    known: Arc<Renderers>,
    /// Until then the directories are not looked at again.
    trusted: Option<Instant>,
    /// Until then a guess is kept; later Salt's Python may be there.
    guess_trusted: Option<Instant>,
    /// Set while Salt is asked.
    asked: Option<Asked>,
}

/// A question to Salt that has no response yet.
#[derive(Debug)]
struct Asked {
    /// What counts if the response takes too long.
    guess: Arc<Renderers>,
    /// Until then renderings wait for it.
    until: Instant,
}

impl Default for SiteRenderers {
    fn default() -> Self {
        Self {
            dirs: Vec::new(),
            patience: limits::REACTOR_RENDERERS_WAIT,
            last: Mutex::default(),
            answered: Condvar::new(),
        }
    }
}

impl SiteRenderers {
    /// The directories of a master or a minion, whether they exist or not.
    pub(crate) fn of(master: &SaltMaster) -> Self {
        let extension_modules = master
            .text("extension_modules")
            .map(|dir| Path::new(dir).join("renderers"));
        let own = master.texts("render_dirs").into_iter().map(PathBuf::from);
        let modules = master.texts("module_dirs").into_iter().flat_map(|dir| {
            // Salt accepts either form.
            ["renderers", "_renderers"].map(|name| Path::new(dir).join(name))
        });

        Self {
            dirs: extension_modules
                .into_iter()
                .chain(own)
                .chain(modules)
                .collect(),
            ..Self::default()
        }
    }

    /// The renderers now.
    pub(crate) fn now(self: &Arc<Self>, salt: &Arc<dyn Salt>) -> Arc<Renderers> {
        let mut last = self.last.lock();
        let now = Instant::now();

        // While Salt is asked, nobody else asks; a later change is found after its response.
        if last.asked.is_none() && last.trusted.is_none_or(|until| until <= now) {
            last.trusted = Some(now + limits::REACTOR_FILES_TRUSTED);
            self.look(&mut last, now, salt);
        }

        loop {
            match &last.asked {
                None => return Arc::clone(&last.known),
                Some(asked) if asked.until <= Instant::now() => return Arc::clone(&asked.guess),
                Some(asked) => {
                    let until = asked.until;
                    self.answered.wait_until(&mut last, until);
                }
            }
        }
    }

    /// Looks at the directories, and asks Salt if its list may have changed.
    fn look(self: &Arc<Self>, last: &mut Last, now: Instant, salt: &Arc<dyn Salt>) {
        let (state, names) = self.state();

        // A list is kept until the directories change, a guess for a while: a process that does not
        // start must not be started for each rendering.
        let is_same = last.known.state == state;
        let is_kept =
            !last.known.is_guessed() || last.guess_trusted.is_some_and(|until| now < until);
        if is_same && is_kept {
            return;
        }

        // Nothing waits for the check of a guess, but for the first response.
        let patience = if is_same && last.guess_trusted.is_some() {
            Duration::ZERO
        } else {
            self.patience
        };
        let known = Known::Guessed(names);
        let guess = Arc::new(Renderers { state, known });
        last.asked = Some(Asked {
            guess: Arc::clone(&guess),
            until: now + patience,
        });

        let (site, salt, otherwise) = (Arc::clone(self), Arc::clone(salt), Arc::clone(&guess));
        let ask = move || {
            // A panic is a bug; the next rendering must not take this question for an open one.
            let list = catch_unwind(AssertUnwindSafe(|| Renderers::listed(state, &*salt)));
            let found = list.ok().flatten().map_or(otherwise, Arc::new);
            site.answer(&mut site.last.lock(), found);
        };

        if let Err(error) = Builder::new().name("sc-react-rend".to_owned()).spawn(ask) {
            tracing::warn!(%error, "cannot query Salt's Python for its renderers, using the file names of the installation: `saltcellar doctor` checks Salt's Python");
            self.answer(last, guess);
        }
    }

    fn answer(&self, last: &mut Last, found: Arc<Renderers>) {
        if found.is_guessed() {
            last.guess_trusted = Some(Instant::now() + limits::REACTOR_RENDERERS_RETRY);
        }
        last.known = found;
        last.asked = None;
        self.answered.notify_all();
    }

    /// A number that changes with the modules in the directories, and the names of the modules; 0
    /// without any.
    fn state(&self) -> (u64, Vec<String>) {
        let mut names = Vec::new();
        let mut modules: Vec<(PathBuf, u64, i64, i64)> = Vec::new();
        for dir in &self.dirs {
            // Salt also skips missing and unreadable directories.
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                let Some(name) = module_name(&path) else {
                    continue;
                };
                let Ok(metadata) = fs::metadata(&path) else {
                    continue;
                };
                let (time, size) = (metadata.mtime(), metadata.size());
                modules.push((path, size, time, metadata.mtime_nsec()));
                names.push(name);
            }
        }
        if modules.is_empty() {
            return (0, names);
        }

        modules.sort();
        let mut hasher = DefaultHasher::new();
        modules.hash(&mut hasher);
        // 0 means that there is no module.
        (hasher.finish().max(1), names)
    }
}

impl Renderers {
    /// The renderers, including extensions that were installed since Python was asked for them;
    /// `None` if Salt has listed its renderers, or does not respond.
    pub(crate) fn with_packages(&self, salt: &dyn Salt) -> Option<Self> {
        if self.state != 0 || matches!(self.known, Known::Listed(_)) {
            return None;
        }
        let all = salt.renderers(0).ok()?;
        Some(Self {
            state: 0,
            known: Known::Listed(all),
        })
    }

    /// Salt's list; `None` if its Python does not respond.
    fn listed(state: u64, salt: &dyn Salt) -> Option<Self> {
        // The usual case: no process has to load Salt.
        let found = match state {
            0 => salt.packages_have_renderers(),
            _ => Ok(true),
        };

        let known = found.and_then(|found| {
            if found {
                salt.renderers(state).map(Known::Listed)
            } else {
                Ok(Known::SaltS)
            }
        });

        match known {
            Ok(known) => Some(Self { state, known }),
            Err(error) => {
                // Without Salt's Python a file that uses one of them fails with an error of its
                // own.
                if !matches!(error, SaltError::Absent(_)) {
                    tracing::warn!(%error, "Salt's Python does not list its renderers, using the file names of the installation: `saltcellar doctor` checks Salt's Python");
                }
                None
            }
        }
    }

    fn is_guessed(&self) -> bool {
        matches!(self.known, Known::Guessed(_))
    }
}

/// The name of a file or directory that Salt's loader takes for a module.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let (stem, end) = match name.split_once('.') {
        Some((stem, end)) => (stem, Some(end)),
        None => (name, None),
    };

    let is_module = match end {
        None => path.join("__init__.py").is_file(),
        Some(end) => {
            // Only the last part counts, as in `name.cpython-312-x86_64-linux-gnu.so`.
            let end = end.rsplit('.').next().unwrap_or_default();
            matches!(end, "py" | "pyc" | "pyx" | "so" | "zip")
        }
    };

    (is_module && !stem.is_empty() && !stem.starts_with('_')).then(|| stem.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Lists these renderers of the site, and counts the questions.
    struct Lists(Vec<&'static str>, AtomicUsize);

    /// The same, from an installed package.
    struct Installed(Lists, AtomicUsize);

    impl Salt for Installed {
        fn packages_have_renderers(&self) -> Result<bool, SaltError> {
            // It does not start at first.
            match self.1.fetch_add(1, Ordering::SeqCst) {
                0 => Err(SaltError::Absent("it did not start".to_owned())),
                _ => Ok(true),
            }
        }

        fn renderers(&self, state: u64) -> Result<HashMap<String, bool>, SaltError> {
            self.0.renderers(state)
        }
    }

    impl Salt for Lists {
        fn renderers(&self, _state: u64) -> Result<HashMap<String, bool>, SaltError> {
            self.1.fetch_add(1, Ordering::SeqCst);
            let of_salt = ["jinja", "yaml", "py"].map(|name| (name.to_owned(), false));
            let own = self.0.iter().map(|name| ((*name).to_owned(), true));
            Ok(of_salt.into_iter().chain(own).collect())
        }
    }

    fn site(dir: &Path) -> Arc<SiteRenderers> {
        let conf = dir.join("master");
        let text = format!(
            "extension_modules: {0}/ext\nrender_dirs: [{0}/own]\nmodule_dirs: [{0}/modules]\n",
            dir.display()
        );
        fs::write(&conf, text).unwrap();
        Arc::new(SiteRenderers::of(&SaltMaster::read(&conf)))
    }

    /// Forgets that the directories were looked at a moment ago.
    fn looked_at_again(site: &Arc<SiteRenderers>, salt: &Arc<dyn Salt>) -> Arc<Renderers> {
        site.last.lock().trusted = None;
        site.now(salt)
    }

    #[test]
    fn salt_is_asked_only_if_a_directory_has_modules_and_again_after_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path());
        let lists = Arc::new(Lists(vec!["yaml", "hookmap"], AtomicUsize::new(0)));
        let salt: Arc<dyn Salt> = lists.clone();
        let asked = || lists.1.load(Ordering::SeqCst);
        for place in ["ext/renderers", "modules/other"] {
            fs::create_dir_all(dir.path().join(place)).unwrap();
        }
        fs::write(dir.path().join("ext/renderers/__init__.py"), "").unwrap();
        fs::write(dir.path().join("ext/renderers/README.md"), "").unwrap();
        let before = site.now(&salt);
        assert_eq!((before.state, asked()), (0, 0), "no module");
        assert_eq!(before.owner("yaml"), Some(Owner::Salt));
        assert_eq!(before.owner("hookmap"), None);

        fs::create_dir_all(dir.path().join("modules/_renderers")).unwrap();
        fs::write(dir.path().join("modules/_renderers/any.py"), "").unwrap();
        let after = looked_at_again(&site, &salt);
        assert_eq!(after.owner("yaml"), Some(Owner::Site), "its virtual name");
        assert_eq!(after.owner("hookmap"), Some(Owner::Site));
        assert_eq!(after.owner("jinja"), Some(Owner::Salt));
        assert_eq!(after.owner("mako"), None, "not installed");
        assert_eq!(looked_at_again(&site, &salt), after);
        assert_eq!(asked(), 1);

        fs::create_dir_all(dir.path().join("own/pkg")).unwrap();
        fs::write(dir.path().join("own/pkg/__init__.py"), "").unwrap();
        assert_ne!(looked_at_again(&site, &salt).state, after.state);
        assert_eq!(asked(), 2);
    }

    #[test]
    fn a_renderer_of_a_package_that_replaces_salts_is_found_by_one_question() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path());
        let counted = || AtomicUsize::new(0);
        let installed = Arc::new(Installed(Lists(vec!["yaml"], counted()), counted()));
        let salt: Arc<dyn Salt> = installed.clone();
        assert_eq!(site.now(&salt).owner("yaml"), Some(Owner::Salt), "unknown");

        // Asked again after a while, and then never more.
        site.last.lock().guess_trusted = None;
        for _ in 0..3 {
            let found = looked_at_again(&site, &salt);
            let owners = ["yaml", "jinja"].map(|name| found.owner(name));
            assert_eq!(owners, [Some(Owner::Site), Some(Owner::Salt)]);
            assert_eq!(found.with_packages(&*salt), None);
        }
        assert_eq!(installed.1.load(Ordering::SeqCst), 2);
        assert_eq!(installed.0.1.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn without_salts_python_the_names_of_the_files_count() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path());
        fs::create_dir_all(dir.path().join("own")).unwrap();
        fs::write(dir.path().join("own/yaml.py"), "").unwrap();
        let salt: Arc<dyn Salt> = Arc::new(crate::reactor::helper::salt::NoSalt);
        let found = site.now(&salt);
        assert_eq!(found.owner("yaml"), Some(Owner::Site));
        assert_eq!(found.owner("jinja"), Some(Owner::Salt));
        assert_eq!(found.owner("hookmap"), None);
    }

    /// Answers when it is let, with an error at first, and counts the questions.
    struct Hangs(Mutex<bool>, Condvar, AtomicUsize);

    impl Salt for Hangs {
        fn renderers(&self, state: u64) -> Result<HashMap<String, bool>, SaltError> {
            let times = self.2.fetch_add(1, Ordering::SeqCst);
            let timeout = Duration::from_secs(60);
            self.1
                .wait_while_for(&mut self.0.lock(), |hangs| *hangs, timeout);
            if times == 0 {
                return Err(SaltError::Absent("it did not start".to_owned()));
            }
            Lists(vec!["hookmap"], AtomicUsize::new(0)).renderers(state)
        }
    }

    #[test]
    fn a_python_that_hangs_delays_no_rendering_and_is_not_asked_for_each() {
        let dir = tempfile::tempdir().unwrap();
        let hangs = Arc::new(Hangs(Mutex::new(true), Condvar::new(), AtomicUsize::new(0)));
        let salt: Arc<dyn Salt> = hangs.clone();
        let asked = || hangs.2.load(Ordering::SeqCst);
        let site = Arc::new(SiteRenderers {
            dirs: vec![dir.path().to_owned()],
            patience: Duration::ZERO,
            ..SiteRenderers::default()
        });
        fs::write(dir.path().join("own.py"), "").unwrap();

        // Both return although the first question is open.
        for _ in 0..2 {
            assert_eq!(
                looked_at_again(&site, &salt).owner("own"),
                Some(Owner::Site)
            );
        }
        crate::testkit::wait_for("the question", || (asked() == 1).then_some(()));
        let wait_for_the_answer = || {
            *hangs.0.lock() = false;
            hangs.1.notify_all();
            crate::testkit::wait_for("the answer", || {
                site.last.lock().asked.is_none().then_some(())
            });
        };
        wait_for_the_answer();

        // The guess is kept for a while, and then checked once, without waiting.
        *hangs.0.lock() = true;
        for _ in 0..2 {
            assert_eq!(looked_at_again(&site, &salt).owner("hookmap"), None);
            assert!(site.last.lock().asked.is_none(), "another question");
        }
        assert_eq!(asked(), 1);
        site.last.lock().guess_trusted = None;
        for _ in 0..2 {
            assert_eq!(looked_at_again(&site, &salt).owner("hookmap"), None);
        }
        crate::testkit::wait_for("the question", || (asked() == 2).then_some(()));
        wait_for_the_answer();
        let listed = looked_at_again(&site, &salt);
        assert_eq!((listed.owner("hookmap"), asked()), (Some(Owner::Site), 2));
    }
}
