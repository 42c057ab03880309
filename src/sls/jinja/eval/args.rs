//! The arguments of a call, and what a function makes of them.

use crate::sls::jinja::exc::{Res, type_error};
use crate::sls::jinja::values::val::{Text, Val};

/// Arguments as they were given.
#[derive(Default, Clone)]
pub(crate) struct Args {
    pub(crate) pos: Vec<Val>,
    pub(crate) kw: Vec<(Text, Val)>,
}

impl Args {
    pub(crate) fn of(pos: Vec<Val>) -> Self {
        Args { pos, kw: Vec::new() }
    }

    /// Spreads them over named parameters, of which the first `required` must be given.
    pub(crate) fn bind<const N: usize>(
        self,
        fun: &str,
        names: [&str; N],
        required: usize,
    ) -> Res<[Option<Val>; N]> {
        let mut bound = [const { None }; N];
        if self.pos.len() > N {
            return Err(type_error(format!(
                "{fun}() takes {N} positional arguments but {} were given",
                self.pos.len()
            )));
        }
        for (place, val) in bound.iter_mut().zip(self.pos) {
            *place = Some(val);
        }
        for (name, val) in self.kw {
            let place = names.iter().position(|known| **known == *name).and_then(|i| bound.get_mut(i));
            match place {
                None => {
                    return Err(type_error(format!("{fun}() got an unexpected keyword argument '{name}'")));
                }
                Some(Some(_)) => {
                    return Err(type_error(format!("{fun}() got multiple values for argument '{name}'")));
                }
                Some(place) => *place = Some(val),
            }
        }
        if let Some((name, _)) = names.iter().zip(&bound).take(required).find(|(_, val)| val.is_none()) {
            return Err(type_error(format!("{fun}() missing 1 required positional argument: '{name}'")));
        }
        Ok(bound)
    }

    /// Positional arguments alone, at least `min` and at most `N`.
    pub(crate) fn positional<const N: usize>(self, fun: &str, min: usize) -> Res<[Option<Val>; N]> {
        if let Some((name, _)) = self.kw.first() {
            return Err(type_error(format!("{fun}() takes no keyword arguments, and '{name}' is one")));
        }
        if self.pos.len() < min || self.pos.len() > N {
            return Err(type_error(format!(
                "{fun}() takes {min} to {N} arguments ({} given)",
                self.pos.len()
            )));
        }
        let mut bound = [const { None }; N];
        for (place, val) in bound.iter_mut().zip(self.pos) {
            *place = Some(val);
        }
        Ok(bound)
    }

    /// No argument at all.
    pub(crate) fn none(self, fun: &str) -> Res<()> {
        self.positional::<0>(fun, 0).map(|_| ())
    }

    /// Takes a keyword argument out.
    pub(crate) fn take(&mut self, name: &str) -> Option<Val> {
        let place = self.kw.iter().position(|(known, _)| **known == *name)?;
        Some(self.kw.remove(place).1)
    }
}
