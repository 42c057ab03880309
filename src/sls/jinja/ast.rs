//! What a template is made of, once parsed.

use std::sync::Arc;

use super::val::Text;

/// A template.
pub(super) struct Template {
    pub(super) body: Vec<Stmt>,
    pub(super) blocks: Vec<Arc<Block>>,
}

/// A statement and its line.
pub(super) struct Stmt {
    pub(super) line: u32,
    pub(super) kind: StmtKind,
}

pub(super) enum StmtKind {
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
pub(super) struct ForLoop {
    pub(super) target: Target,
    pub(super) iter: Expr,
    pub(super) test: Option<Expr>,
    pub(super) recursive: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) or_else: Vec<Stmt>,
    /// Whether the body asks for `loop`.
    pub(super) uses_loop: bool,
}

/// A macro, or the body of a `call` block.
pub(super) struct MacroDef {
    pub(super) name: Option<Text>,
    pub(super) args: Vec<Text>,
    pub(super) defaults: Vec<Expr>,
    pub(super) body: Vec<Stmt>,
    pub(super) line: u32,
    pub(super) takes_caller: bool,
    pub(super) takes_kwargs: bool,
    pub(super) takes_varargs: bool,
}

/// `block`
pub(super) struct Block {
    pub(super) name: Text,
    pub(super) scoped: bool,
    pub(super) required: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) file: Text,
}

/// What is assigned to.
pub(super) enum Target {
    Name(Text),
    /// An attribute of a namespace.
    Attr(Text, Text),
    Tuple(Vec<Target>),
}

/// An expression.
pub(super) enum Expr {
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
pub(super) struct Cond {
    pub(super) test: Expr,
    pub(super) then: Expr,
    pub(super) or_else: Option<Expr>,
}

/// Arguments as written.
#[derive(Default)]
pub(super) struct CallArgs {
    pub(super) pos: Vec<Expr>,
    pub(super) kw: Vec<(Text, Expr)>,
    pub(super) star: Option<Expr>,
    pub(super) star_star: Option<Expr>,
}

pub(super) struct Call {
    pub(super) line: u32,
    pub(super) callee: Expr,
    pub(super) args: CallArgs,
}

pub(super) struct Filter {
    pub(super) line: u32,
    pub(super) name: Text,
    /// `None`: what the block around it captured.
    pub(super) target: Option<Expr>,
    pub(super) args: CallArgs,
}

pub(super) struct Test {
    pub(super) line: u32,
    pub(super) name: Text,
    pub(super) target: Expr,
    pub(super) args: CallArgs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BinOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

impl BinOp {
    pub(super) fn sign(self) -> &'static str {
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
pub(super) enum CmpOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}
