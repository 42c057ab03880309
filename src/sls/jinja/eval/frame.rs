//! Variables: frames within frames, the outermost of which is a template's own.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::sls::jinja::values::val::{Text, Val};

/// Variables of one scope.
#[derive(Default)]
pub(crate) struct Frame {
    vars: RefCell<Vec<(Text, Val)>>,
    parent: Option<Rc<Frame>>,
    /// What a template's own frame does not export, though it is there: what it imported.
    hidden: RefCell<Vec<Text>>,
    /// Whether a value keeps it beyond its scope.
    pub(crate) captured: Cell<bool>,
}

impl Frame {
    pub(crate) fn root(parent: Option<Rc<Frame>>) -> Rc<Frame> {
        Rc::new(Frame { parent, ..Frame::default() })
    }

    pub(crate) fn inner(parent: &Rc<Frame>) -> Rc<Frame> {
        Rc::new(Frame { parent: Some(Rc::clone(parent)), ..Frame::default() })
    }

    /// The variable of this name here or further out.
    pub(crate) fn get(&self, name: &str) -> Option<Val> {
        let mut frame = self;
        loop {
            if let Some((_, val)) = frame.vars.borrow().iter().find(|(var, _)| &**var == name) {
                return Some(val.clone());
            }
            frame = frame.parent.as_deref()?;
        }
    }

    /// Sets a variable here.
    pub(crate) fn set(&self, name: &Text, val: Val) {
        let old = {
            let mut vars = self.vars.borrow_mut();
            match vars.iter_mut().find(|(var, _)| var == name) {
                Some((_, place)) => Some(std::mem::replace(place, val)),
                None => {
                    vars.push((Text::clone(name), val));
                    None
                }
            }
        };
        drop(old);
    }

    /// Says that a variable is not for those who import this template.
    pub(super) fn hide(&self, name: &Text, hidden: bool) {
        let mut names = self.hidden.borrow_mut();
        names.retain(|other| other != name);
        if hidden {
            names.push(Text::clone(name));
        }
    }

    /// What those who import this template get.
    pub(crate) fn exported(&self) -> Vec<(Text, Val)> {
        let hidden = self.hidden.borrow();
        let vars = self.vars.borrow();
        vars.iter().filter(|(name, _)| !name.starts_with('_') && !hidden.contains(name)).cloned().collect()
    }

    /// All variables, inner ones over outer ones.
    pub(crate) fn all(&self) -> Vec<(Text, Val)> {
        let mut all: Vec<(Text, Val)> = Vec::new();
        let mut frame = Some(self);
        while let Some(here) = frame {
            for (name, val) in here.vars.borrow().iter() {
                if !all.iter().any(|(other, _)| other == name) {
                    all.push((Text::clone(name), val.clone()));
                }
            }
            frame = here.parent.as_deref();
        }
        all
    }

    /// Takes all variables out.
    pub(crate) fn clear(&self) -> Vec<Val> {
        self.vars.take().into_iter().map(|(_, val)| val).collect()
    }
}
