//! Other files: imports, includes, what a template extends.

use std::rc::Rc;
use std::sync::Arc;

use super::frame::Frame;
use super::interp::Interp;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{self, Exc, Kind, Res, other_error};
use crate::sls::jinja::syntax::ast::Template;
use crate::sls::jinja::values::object::{Module, Object};
use crate::sls::jinja::values::val::{Text, Val};

impl Interp<'_> {
    /// A template by its name, or the first there is of several.
    pub(crate) fn load(&mut self, name: &Val) -> Res<(Text, Arc<Template>)> {
        match name {
            Val::Undef(undef) => Err(undef.fail()),
            Val::Str(text) | Val::Markup(text) => self.load_one(text),
            Val::List(_) | Val::Tuple(_) => {
                let names = self.collect(name)?;
                if names.is_empty() {
                    return Err(Exc::new(Kind::NotFound, "Tried to select from an empty list of templates"));
                }
                for name in &names {
                    match self.load(name) {
                        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Undefined) => {}
                        other => return other,
                    }
                }
                Err(Exc::new(Kind::NotFound, "none of the templates given were found"))
            }
            other => {
                Err(exc::type_error(format!("'{}' object is not the name of a template", other.type_name())))
            }
        }
    }

    fn load_one(&mut self, name: &Text) -> Res<(Text, Arc<Template>)> {
        if let Some((file, template)) = self.loaded.get(name) {
            return Ok((Text::clone(file), Arc::clone(template)));
        }
        let not_found = || Exc::new(Kind::NotFound, &**name);
        let relative = matches!(name.split('/').next(), Some("." | ".."));
        let path = if relative {
            let joined = normalized(&format!("{}/{name}", self.tpl.get(1).map_or(".", |dir| dir)));
            if joined == ".." || joined.starts_with("../") {
                return Err(not_found());
            }
            joined
        } else {
            name.to_string()
        };
        let loaded = self.context.loader.load(&path).map_err(other_error)?;
        // Salt sets these before it knows whether the file is there.
        if !relative {
            let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
            self.tpl = [
                Text::from(path.as_str()),
                Text::from(if dir.is_empty() { "." } else { dir }),
                Text::from(dir.replace('/', ".")),
            ];
        } else if let Some(dir) = self.tpl.get(1).cloned() {
            let dot = Text::from(dir.replace('/', "."));
            self.tpl = [Text::clone(name), if dir.is_empty() { Text::from(".") } else { dir }, dot];
        }
        let Some(loaded) = loaded else { return Err(not_found()) };
        // What is loaded is kept until the rendering ends.
        budget::room(loaded.text.len())?;
        budget::took(loaded.text.len());
        let file = Text::from(loaded.path);
        let template = self.engine.compiled(&loaded.text, self.syntax, &file)?;
        self.loaded.insert(Text::clone(name), (Text::clone(&file), Arc::clone(&template)));
        Ok((file, template))
    }

    /// The names that a file without context knows of where it lies.
    fn outer_names(&self) -> Rc<Frame> {
        let outer = Frame::root(None);
        for (name, val) in ["tplfile", "tpldir", "tpldot"].into_iter().zip(&self.tpl) {
            outer.set(&Text::from(name), Val::Str(Text::clone(val)));
        }
        outer
    }

    pub(crate) fn include(
        &mut self,
        name: &Val,
        ignore_missing: bool,
        with_context: bool,
        frame: &Rc<Frame>,
        out: &mut String,
    ) -> Res<()> {
        let (file, template) = match self.load(name) {
            Err(error) if ignore_missing && Self::missing(&error) => return Ok(()),
            other => other?,
        };
        if with_context {
            // Its own variables are gone with it; it sees all of ours.
            let root = Frame::root(Some(Rc::clone(frame)));
            return self.apart(&file, root, |interp| interp.template(&template, out)).map(|_| ());
        }
        let module = self.default_module(name, &file, &template)?;
        if let Val::Object(object) = &module
            && let Object::Module(module) = &**object
        {
            budget::took(module.text.len());
            out.push_str(&module.text);
        }
        Ok(())
    }

    pub(crate) fn import(&mut self, name: &Val, with_context: bool, frame: &Rc<Frame>) -> Res<Val> {
        let (file, template) = self.load(name)?;
        if with_context {
            return self.module(name, &file, &template, Frame::root(Some(Rc::clone(frame))));
        }
        self.default_module(name, &file, &template)
    }

    /// The module of a template that sees nothing of ours; made once.
    fn default_module(&mut self, name: &Val, file: &Text, template: &Arc<Template>) -> Res<Val> {
        if let Some(module) = self.modules.get(file) {
            return Ok(module.clone());
        }
        let root = Frame::root(Some(self.outer_names()));
        let module = self.module(name, file, template, root)?;
        self.modules.insert(Text::clone(file), module.clone());
        Ok(module)
    }

    fn module(&mut self, name: &Val, file: &Text, template: &Arc<Template>, root: Rc<Frame>) -> Res<Val> {
        let mut text = String::new();
        let ((), root) = self.apart(file, root, |interp| interp.template(template, &mut text))?;
        let name = name.as_str().map_or_else(|| Text::clone(file), Text::from);
        Ok(Val::object(Object::Module(Module {
            name,
            text: Text::from(text),
            exported: std::cell::RefCell::new(root.exported()),
        })))
    }

    /// A name out of a module, as `from .. import` gets it.
    pub(crate) fn imported(&self, module: &Val, name: &Text) -> Val {
        if let Val::Object(object) = module
            && let Object::Module(module) = &**object
        {
            let exported = module.exported.borrow();
            if let Some((_, val)) = exported.iter().find(|(other, _)| other == name) {
                return val.clone();
            }
            return self.undefined(format!(
                "the template '{}' does not export the requested name '{name}'",
                module.name
            ));
        }
        self.undefined(format!("'{name}' is undefined"))
    }
}

/// `os.path.normpath` of a relative path.
pub(crate) fn normalized(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if absolute => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (absolute, path.starts_with("//") && !path.starts_with("///")) {
        (true, true) => format!("//{joined}"),
        (true, false) => format!("/{joined}"),
        _ if joined.is_empty() => ".".to_owned(),
        _ => joined,
    }
}
