//! A site's own renderers: modules in the directories from which Salt loads renderers besides its
//! own.
//!
//! A module can replace one of Salt's (`renderers/yaml.py`), and its name is not always that of its
//! file (`__virtualname__`). So if a directory has modules, Salt's Python says which renderers
//! there are and whose. Without such modules no process is started. The directories are looked at
//! again after [`limits::REACTOR_FILES_TRUSTED`]; after a change Salt is asked again and loads its
//! renderers anew.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::pipe::{NATIVE, SALT_S};
use crate::base::limits;
use crate::config::salt_master::SaltMaster;
use crate::reactor::helper::salt::{Salt, SaltError};

/// The renderers for one state of the directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Renderers {
    /// Identifies the state; 0 without any module of the site.
    pub(crate) state: u64,
    known: Known,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Known {
    /// Only those of Salt.
    #[default]
    SaltS,
    /// By name, with true for a renderer of the site.
    Listed(HashMap<String, bool>),
    /// Salt's Python did not respond. The names of the site's modules.
    Guessed(Vec<String>),
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
            // A module usually has the name of its renderer.
            Known::Guessed(names) if names.iter().any(|own| own == name) => Some(Owner::Site),
            Known::SaltS | Known::Guessed(_) => of_salt(),
        }
    }
}

/// The directories of a site, and the renderers for their last state.
#[derive(Debug, Default)]
pub(crate) struct SiteRenderers {
    dirs: Vec<PathBuf>,
    last: Mutex<Option<(Instant, Arc<Renderers>)>>,
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
            last: Mutex::default(),
        }
    }

    /// The renderers now.
    pub(crate) fn now(&self, salt: &dyn Salt) -> Arc<Renderers> {
        // Held while Salt is asked, so that one thread asks for all.
        let mut last = self.last.lock();
        let now = Instant::now();
        if let Some((until, renderers)) = &*last
            && now < *until
        {
            return Arc::clone(renderers);
        }

        let (state, names) = self.state();
        let until = now + limits::REACTOR_FILES_TRUSTED;
        // A list is kept until the directories change. A guess is not: Salt's Python may be
        // there now.
        let renderers = match &*last {
            Some((_, known)) if known.state == state && !known.is_guessed() => Arc::clone(known),
            _ => Arc::new(Renderers::asked(state, names, salt)),
        };
        *last = Some((until, Arc::clone(&renderers)));
        renderers
    }

    /// A number that changes with the modules in the directories, and the names of the modules; 0
    /// without any.
    fn state(&self) -> (u64, Vec<String>) {
        let mut names = Vec::new();
        let mut modules: Vec<(PathBuf, u64, i64, i64)> = Vec::new();
        for dir in &self.dirs {
            // Salt skips missing and unreadable directories, too.
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
    /// The renderers with those of installed extensions, which are in no directory of the
    /// configuration; `None` if Salt was asked before, or does not respond.
    pub(crate) fn with_packages(&self, salt: &dyn Salt) -> Option<Self> {
        if self.state != 0 {
            return None;
        }
        let all = salt.renderers(0).ok()?;
        Some(Self {
            state: 0,
            known: Known::Listed(all),
        })
    }

    fn asked(state: u64, names: Vec<String>, salt: &dyn Salt) -> Self {
        if state == 0 {
            return Self::default();
        }

        let known = match salt.renderers(state) {
            Ok(all) => Known::Listed(all),
            Err(error) => {
                // Without Salt's Python a file that uses one of them fails with an error of its
                // own.
                if !matches!(error, SaltError::Absent(_)) {
                    tracing::warn!(%error, "Salt's Python does not list its renderers, taking the names of the site's files");
                }
                Known::Guessed(names)
            }
        };
        Self { state, known }
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

    impl Salt for Lists {
        fn renderers(&self, _state: u64) -> Result<HashMap<String, bool>, SaltError> {
            self.1.fetch_add(1, Ordering::SeqCst);
            let of_salt = ["jinja", "yaml", "py"].map(|name| (name.to_owned(), false));
            let own = self.0.iter().map(|name| ((*name).to_owned(), true));
            Ok(of_salt.into_iter().chain(own).collect())
        }
    }

    fn site(dir: &Path) -> SiteRenderers {
        let conf = dir.join("master");
        let text = format!(
            "extension_modules: {0}/ext\nrender_dirs: [{0}/own]\nmodule_dirs: [{0}/modules]\n",
            dir.display()
        );
        fs::write(&conf, text).unwrap();
        SiteRenderers::of(&SaltMaster::read(&conf))
    }

    /// Forgets that the directories were looked at a moment ago.
    fn looked_at_again(site: &SiteRenderers, salt: &dyn Salt) -> Arc<Renderers> {
        if let Some((until, _)) = &mut *site.last.lock() {
            *until = Instant::now();
        }
        site.now(salt)
    }

    #[test]
    fn salt_is_asked_only_if_a_directory_has_modules_and_again_after_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path());
        let salt = Lists(vec!["yaml", "hookmap"], AtomicUsize::new(0));
        let asked = || salt.1.load(Ordering::SeqCst);
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
    fn without_salts_python_the_names_of_the_files_count() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path());
        fs::create_dir_all(dir.path().join("own")).unwrap();
        fs::write(dir.path().join("own/yaml.py"), "").unwrap();
        let found = site.now(&crate::reactor::helper::salt::NoSalt);
        assert_eq!(found.owner("yaml"), Some(Owner::Site));
        assert_eq!(found.owner("jinja"), Some(Owner::Salt));
        assert_eq!(found.owner("hookmap"), None);
    }
}
