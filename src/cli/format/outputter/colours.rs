//! The colours of Salt.

/// The escape sequences that Salt uses, or none.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Colours {
    on: bool,
}

impl Colours {
    pub(in crate::cli) fn new(on: bool) -> Self {
        Self { on }
    }

    fn code(self, code: &'static str) -> &'static str {
        if self.on { code } else { "" }
    }

    pub(super) fn red(self) -> &'static str {
        self.code("\x1b[0;31m")
    }

    pub(super) fn light_red(self) -> &'static str {
        self.code("\x1b[0;1;31m")
    }

    pub(super) fn green(self) -> &'static str {
        self.code("\x1b[0;32m")
    }

    pub(super) fn light_yellow(self) -> &'static str {
        self.code("\x1b[0;1;33m")
    }

    pub(super) fn cyan(self) -> &'static str {
        self.code("\x1b[0;36m")
    }

    pub(super) fn end(self) -> &'static str {
        self.code("\x1b[0;0m")
    }
}
