//! The findings of checks.

/// Ordered by how much it wants to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CheckResult {
    Ok,
    /// Not checked, because this user may not read what it needs.
    Skipped,
    Warning,
    Problem,
}

impl CheckResult {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

pub(super) struct CheckFinding {
    pub(super) check: &'static str,
    pub(super) result: CheckResult,
    pub(super) message: String,
    pub(super) advice: Option<Advice>,
}

pub(super) struct Advice {
    pub(super) reason: String,
    pub(super) remedy: String,
}

#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<CheckFinding>);

impl Findings {
    pub(super) fn of(&mut self, check: &'static str) -> Reporter<'_> {
        Reporter { check, found: self }
    }

    /// The worst finding of a check, and of its parts: `reactor` is also that of `reactor.loops`.
    pub(super) fn worst(&self, check: &str) -> Option<CheckResult> {
        let is_of_it = |name: &str| {
            let rest = name.strip_prefix(check);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let of_it = self.0.iter().filter(|finding| is_of_it(finding.check));
        of_it.map(|finding| finding.result).max()
    }

    pub(super) fn problems(&self) -> usize {
        self.0
            .iter()
            .filter(|finding| finding.result == CheckResult::Problem)
            .count()
    }
}

/// The findings of one check. The remedy of a finding is a line for a configuration file, or a
/// command in backquotes.
pub(super) struct Reporter<'a> {
    check: &'static str,
    pub(super) found: &'a mut Findings,
}

impl Reporter<'_> {
    pub(super) fn ok(&mut self, message: impl Into<String>) {
        self.add(CheckResult::Ok, message);
    }

    /// The check needs rights that this user lacks. It says nothing about what it could not read.
    pub(super) fn needs_root(&mut self, what: impl std::fmt::Display) {
        self.add(
            CheckResult::Skipped,
            format!("not checked: needs root, {what} cannot be read"),
        );
    }

    pub(super) fn warn(&mut self, message: impl Into<String>) {
        self.add(CheckResult::Warning, message);
    }

    pub(super) fn problem(&mut self, message: impl Into<String>) {
        self.add(CheckResult::Problem, message);
    }

    pub(super) fn add(&mut self, result: CheckResult, message: impl Into<String>) {
        self.found.0.push(CheckFinding {
            check: self.check,
            result,
            message: message.into(),
            advice: None,
        });
    }

    pub(super) fn warn_because(
        &mut self,
        message: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.advise(CheckResult::Warning, message, reason, remedy);
    }

    pub(super) fn problem_because(
        &mut self,
        what: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.advise(CheckResult::Problem, what, reason, remedy);
    }

    pub(super) fn advise(
        &mut self,
        result: CheckResult,
        message: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let advice = Some(Advice {
            reason: reason.into(),
            remedy: remedy.into(),
        });

        self.found.0.push(CheckFinding {
            check: self.check,
            result,
            message: message.into(),
            advice,
        });
    }
}

/// Whether this user may not read something that root may.
pub(super) fn is_denied(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root()
}
