//! What a template is made of, once parsed.

use std::sync::Arc;

use crate::sls::jinja::values::val::Text;

/// A template.
pub(crate) struct Template {
    pub(crate) body: Vec<Stmt>,
    pub(crate) blocks: Vec<Arc<Block>>,
}

/// A statement and its line.
pub(crate) struct Stmt {
    pub(crate) line: u32,
    pub(crate) kind: StmtKind,
}

pub(crate) enum StmtKind {
    Data(Text),
    Print(Expr),
    For(Arc<ForLoop>),
    If {
        tests: Vec<(u32, Expr, Vec<Stmt>)>,
        or_else: Vec<Stmt>,
    },
    With {
        targets: Vec<(Target, Expr)>,
        body: Vec<Stmt>,
    },
    /// A scope of its own: `autoescape`.
    Scope(Vec<Stmt>),
    Set(Target, Expr),
    SetBlock {
        target: Target,
        filter: Option<Expr>,
        body: Vec<Stmt>,
    },
    Filter {
        filter: Expr,
        body: Vec<Stmt>,
    },
    Macro(Arc<MacroDef>),
    Call {
        def: Arc<MacroDef>,
        call: Expr,
    },
    Block(Arc<Block>),
    Extends(Expr),
    Include {
        name: Expr,
        ignore_missing: bool,
        with_context: bool,
    },
    Import {
        name: Expr,
        target: Text,
        with_context: bool,
        load: Option<&'static str>,
    },
    FromImport {
        name: Expr,
        names: Vec<(Text, Text)>,
        with_context: bool,
    },
    /// `load_yaml`, `load_json`, `load_text`
    Load {
        target: Target,
        filter: &'static str,
        body: Vec<Stmt>,
    },
    /// `profile`: Salt logs how long it takes.
    Profile {
        label: Expr,
        body: Vec<Stmt>,
    },
    Do(Expr),
    Break,
    Continue,
}

/// `for`
pub(crate) struct ForLoop {
    pub(crate) target: Target,
    pub(crate) iter: Expr,
    pub(crate) test: Option<Expr>,
    pub(crate) recursive: bool,
    pub(crate) body: Vec<Stmt>,
    pub(crate) or_else: Vec<Stmt>,
    /// Whether the body asks for `loop`.
    pub(crate) uses_loop: bool,
}

/// A macro, or the body of a `call` block.
pub(crate) struct MacroDef {
    pub(crate) name: Option<Text>,
    pub(crate) args: Vec<Text>,
    pub(crate) defaults: Vec<Expr>,
    pub(crate) body: Vec<Stmt>,
    pub(crate) line: u32,
    pub(crate) takes_caller: bool,
    pub(crate) takes_kwargs: bool,
    pub(crate) takes_varargs: bool,
}

/// `block`
pub(crate) struct Block {
    pub(crate) name: Text,
    pub(crate) scoped: bool,
    pub(crate) required: bool,
    pub(crate) body: Vec<Stmt>,
    pub(crate) file: Text,
}

/// What is assigned to.
pub(crate) enum Target {
    Name(Text),
    /// An attribute of a namespace.
    Attr(Text, Text),
    Tuple(Vec<Target>),
}

/// An expression.
pub(crate) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    Name(Text),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attr(Box<Expr>, Text),
    Item(Box<(Expr, Expr)>),
    Slice(Box<(Expr, [Option<Expr>; 3])>),
    /// A slice among several subscripts: `x[1:2, 3]`, which nothing here takes.
    BareSlice,
    Call(Box<Call>),
    Filter(Box<Filter>),
    Test(Box<Test>),
    Bin(BinOp, Box<(Expr, Expr)>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    Compare(Box<Expr>, Vec<(CmpOp, Expr)>),
    Concat(Vec<Expr>),
    Cond(Box<Cond>),
}

/// `then if test else or_else`
pub(crate) struct Cond {
    pub(crate) test: Expr,
    pub(crate) then: Expr,
    pub(crate) or_else: Option<Expr>,
}

/// Arguments as written.
#[derive(Default)]
pub(crate) struct CallArgs {
    pub(crate) pos: Vec<Expr>,
    pub(crate) kw: Vec<(Text, Expr)>,
    pub(crate) star: Option<Expr>,
    pub(crate) star_star: Option<Expr>,
}

pub(crate) struct Call {
    pub(crate) line: u32,
    pub(crate) callee: Expr,
    pub(crate) args: CallArgs,
}

pub(crate) struct Filter {
    pub(crate) line: u32,
    pub(crate) name: Text,
    /// `None`: what the block around it captured.
    pub(crate) target: Option<Expr>,
    pub(crate) args: CallArgs,
}

pub(crate) struct Test {
    pub(crate) line: u32,
    pub(crate) name: Text,
    pub(crate) target: Expr,
    pub(crate) args: CallArgs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

impl BinOp {
    pub(crate) fn sign(self) -> &'static str {
        match self {
            BinOp::Add => "+",
            BinOp::Sub => "-",
            BinOp::Mul => "*",
            BinOp::Div => "/",
            BinOp::FloorDiv => "//",
            BinOp::Mod => "%",
            BinOp::Pow => "** or pow()",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CmpOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}
