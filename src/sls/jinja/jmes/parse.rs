//! JMESPath expressions to trees.

use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Exc, Res, value_error};
use crate::sls::jinja::library::json;
use crate::sls::jinja::syntax::ast::CmpOp;
use crate::sls::jinja::values::val::Val;

#[derive(Debug, Clone, PartialEq)]
enum Tok {
    Name(String),
    Raw(String),
    Literal(String),
    Number(i64),
    Op(&'static str),
    End,
}

/// An expression.
pub(super) enum Node {
    Current,
    Field(String),
    Literal(Val),
    Index(i64),
    Slice([Option<i64>; 3]),
    Sub(Box<(Node, Node)>),
    /// What each member of a list gives, without those that give nothing.
    Project(Box<(Node, Node)>),
    ProjectValues(Box<(Node, Node)>),
    Filter(Box<(Node, Node, Node)>),
    Flatten(Box<Node>),
    Pipe(Box<(Node, Node)>),
    Or(Box<(Node, Node)>),
    And(Box<(Node, Node)>),
    Not(Box<Node>),
    Compare(CmpOp, Box<(Node, Node)>),
    List(Vec<Node>),
    Dict(Vec<(String, Node)>),
    Call(String, Vec<Node>),
    /// `&expression`
    Ref(Box<Node>),
}

const OPERATORS: [&str; 23] = [
    "[?", "[]", "||", "&&", "==", "!=", "<=", ">=", ".", "*", "[", "]", "{", "}", "(", ")", ",", ":", "|",
    "&", "<", ">", "@",
];

fn bad(message: impl Into<String>) -> Exc {
    value_error(message)
}

fn tokens(text: &str) -> Res<Vec<Tok>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let quoted = |quote: char| -> Res<usize> {
            let mut escaped = false;
            for (i, c) in rest.char_indices().skip(1) {
                match c {
                    _ if escaped => escaped = false,
                    '\\' => escaped = true,
                    c if c == quote => return Ok(i),
                    _ => {}
                }
            }
            Err(bad(format!("Unclosed {quote} delimiter")))
        };
        let len = if first.is_ascii_whitespace() {
            1
        } else if first == '_' || first.is_ascii_alphabetic() {
            let len = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            tokens.push(Tok::Name(rest.get(..len).unwrap_or_default().to_owned()));
            len
        } else if first == '-' || first.is_ascii_digit() {
            let digits = rest.get(1..).unwrap_or_default();
            let len = 1 + digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            let number = rest.get(..len).unwrap_or_default();
            tokens.push(Tok::Number(number.parse().map_err(|_| bad(format!("Unknown token '{number}'")))?));
            len
        } else if first == '"' {
            let end = quoted('"')?;
            let text = rest.get(..=end).unwrap_or_default();
            match json::loads(text)? {
                Val::Str(name) => tokens.push(Tok::Name(name.to_string())),
                _ => return Err(bad("not a name")),
            }
            end + 1
        } else if first == '\'' {
            let end = quoted('\'')?;
            tokens.push(Tok::Raw(rest.get(1..end).unwrap_or_default().replace("\\'", "'")));
            end + 1
        } else if first == '`' {
            let end = quoted('`')?;
            tokens.push(Tok::Literal(rest.get(1..end).unwrap_or_default().replace("\\`", "`")));
            end + 1
        } else if let Some(op) = OPERATORS.iter().find(|op| rest.starts_with(**op)) {
            tokens.push(Tok::Op(op));
            op.len()
        } else if first == '!' {
            tokens.push(Tok::Op("!"));
            1
        } else {
            return Err(bad(format!("Unknown token {first}")));
        };
        rest = rest.get(len..).unwrap_or_default();
    }
    tokens.push(Tok::End);
    Ok(tokens)
}

/// How tightly an operator binds.
fn power(tok: &Tok) -> u8 {
    match tok {
        Tok::Op("|") => 1,
        Tok::Op("||") => 2,
        Tok::Op("&&") => 3,
        Tok::Op("==" | "!=" | "<" | "<=" | ">" | ">=") => 5,
        Tok::Op("[]") => 9,
        Tok::Op("*") => 20,
        Tok::Op("[?") => 21,
        Tok::Op(".") => 40,
        Tok::Op("{") => 50,
        Tok::Op("[") => 55,
        Tok::Op("(") => 60,
        _ => 0,
    }
}

/// What does not reach through a projection.
const PROJECTION_STOP: u8 = 10;

struct Parser {
    tokens: Vec<Tok>,
    place: usize,
}

impl Parser {
    fn peek(&self) -> &Tok {
        self.tokens.get(self.place).unwrap_or(&Tok::End)
    }

    fn ahead(&self, by: usize) -> &Tok {
        self.tokens.get(self.place + by).unwrap_or(&Tok::End)
    }

    fn next(&mut self) -> Tok {
        let tok = self.peek().clone();
        self.place += 1;
        tok
    }

    fn expect(&mut self, op: &str) -> Res<()> {
        match self.next() {
            Tok::Op(here) if here == op => Ok(()),
            other => Err(bad(format!("Expecting: {op}, got: {other:?}"))),
        }
    }

    fn is(&self, op: &str) -> bool {
        matches!(self.peek(), Tok::Op(here) if *here == op)
    }

    fn expression(&mut self, binding: u8) -> Res<Node> {
        let _level = budget::deeper()?;
        let mut left = self.prefix()?;
        while binding < power(self.peek()) {
            budget::step()?;
            left = self.infix(left)?;
        }
        Ok(left)
    }

    fn prefix(&mut self) -> Res<Node> {
        Ok(match self.next() {
            Tok::Name(name) => {
                if self.is("(") {
                    self.place += 1;
                    return self.arguments(name);
                }
                Node::Field(name)
            }
            Tok::Raw(text) => Node::Literal(Val::str(text)),
            Tok::Literal(text) => Node::Literal(match json::loads(&text) {
                Ok(val) => val,
                // Old spelling: text without its quotes.
                Err(_) => Val::str(text.trim_start()),
            }),
            Tok::Op("@") => Node::Current,
            Tok::Op("*") => {
                let right = if self.is("]") { Node::Current } else { self.projected(20)? };
                Node::ProjectValues(Box::new((Node::Current, right)))
            }
            Tok::Op("[?") => self.filter(Node::Current)?,
            Tok::Op("[]") => {
                let right = self.projected(9)?;
                Node::Project(Box::new((Node::Flatten(Box::new(Node::Current)), right)))
            }
            Tok::Op("[") => {
                if matches!(self.peek(), Tok::Number(_) | Tok::Op(":")) {
                    return self.index(Node::Current);
                }
                if self.is("*") && matches!(self.ahead(1), Tok::Op("]")) {
                    self.place += 2;
                    let right = self.projected(20)?;
                    return Ok(Node::Project(Box::new((Node::Current, right))));
                }
                self.multi_list()?
            }
            Tok::Op("{") => self.multi_dict()?,
            Tok::Op("!") => Node::Not(Box::new(self.expression(45)?)),
            Tok::Op("(") => {
                let inner = self.expression(0)?;
                self.expect(")")?;
                inner
            }
            Tok::Op("&") => Node::Ref(Box::new(self.expression(0)?)),
            other => return Err(bad(format!("Invalid jmespath expression: unexpected {other:?}"))),
        })
    }

    fn infix(&mut self, left: Node) -> Res<Node> {
        Ok(match self.next() {
            Tok::Op(".") => {
                if self.is("*") {
                    self.place += 1;
                    let right = self.projected(20)?;
                    return Ok(Node::ProjectValues(Box::new((left, right))));
                }
                let right = self.after_dot(40)?;
                Node::Sub(Box::new((left, right)))
            }
            Tok::Op("|") => Node::Pipe(Box::new((left, self.expression(1)?))),
            Tok::Op("||") => Node::Or(Box::new((left, self.expression(2)?))),
            Tok::Op("&&") => Node::And(Box::new((left, self.expression(3)?))),
            Tok::Op(op @ ("==" | "!=" | "<" | "<=" | ">" | ">=")) => {
                let op = match op {
                    "==" => CmpOp::Eq,
                    "!=" => CmpOp::Ne,
                    "<" => CmpOp::Lt,
                    "<=" => CmpOp::Le,
                    ">" => CmpOp::Gt,
                    _ => CmpOp::Ge,
                };
                Node::Compare(op, Box::new((left, self.expression(5)?)))
            }
            Tok::Op("[?") => self.filter(left)?,
            Tok::Op("[]") => {
                let right = self.projected(9)?;
                Node::Project(Box::new((Node::Flatten(Box::new(left)), right)))
            }
            Tok::Op("[") => {
                if matches!(self.peek(), Tok::Number(_) | Tok::Op(":")) {
                    return self.index(left);
                }
                self.expect("*")?;
                self.expect("]")?;
                let right = self.projected(20)?;
                Node::Project(Box::new((left, right)))
            }
            other => return Err(bad(format!("Invalid jmespath expression: unexpected {other:?}"))),
        })
    }

    /// What follows a projection and is done to each member.
    fn projected(&mut self, binding: u8) -> Res<Node> {
        if power(self.peek()) < PROJECTION_STOP {
            return Ok(Node::Current);
        }
        match self.peek() {
            Tok::Op("[" | "[?") => self.expression(binding),
            Tok::Op(".") => {
                self.place += 1;
                self.after_dot(binding)
            }
            other => Err(bad(format!("syntax error: {other:?}"))),
        }
    }

    fn after_dot(&mut self, binding: u8) -> Res<Node> {
        match self.peek() {
            Tok::Name(_) | Tok::Op("*") => self.expression(binding),
            Tok::Op("[") => {
                self.place += 1;
                self.multi_list()
            }
            Tok::Op("{") => {
                self.place += 1;
                self.multi_dict()
            }
            other => Err(bad(format!("syntax error: {other:?}"))),
        }
    }

    fn filter(&mut self, left: Node) -> Res<Node> {
        let condition = self.expression(0)?;
        self.expect("]")?;
        let right = if self.is("[]") { Node::Current } else { self.projected(21)? };
        Ok(Node::Filter(Box::new((left, right, condition))))
    }

    fn index(&mut self, left: Node) -> Res<Node> {
        let mut parts = [None; 3];
        let mut colons = 0;
        loop {
            match self.next() {
                Tok::Op("]") => break,
                Tok::Op(":") if colons < 2 => colons += 1,
                Tok::Number(number) => match parts.get_mut(colons) {
                    Some(place @ None) => *place = Some(number),
                    _ => return Err(bad("syntax error")),
                },
                other => return Err(bad(format!("syntax error: {other:?}"))),
            }
        }
        if colons == 0 {
            let [Some(place), ..] = parts else { return Err(bad("syntax error")) };
            return Ok(Node::Sub(Box::new((left, Node::Index(place)))));
        }
        let right = self.projected(20)?;
        Ok(Node::Project(Box::new((Node::Sub(Box::new((left, Node::Slice(parts)))), right))))
    }

    fn multi_list(&mut self) -> Res<Node> {
        let mut items = Vec::new();
        loop {
            items.push(self.expression(0)?);
            match self.next() {
                Tok::Op("]") => return Ok(Node::List(items)),
                Tok::Op(",") => {}
                other => return Err(bad(format!("syntax error: {other:?}"))),
            }
        }
    }

    fn multi_dict(&mut self) -> Res<Node> {
        let mut items = Vec::new();
        loop {
            let Tok::Name(name) = self.next() else { return Err(bad("a key is a name")) };
            self.expect(":")?;
            items.push((name, self.expression(0)?));
            match self.next() {
                Tok::Op("}") => return Ok(Node::Dict(items)),
                Tok::Op(",") => {}
                other => return Err(bad(format!("syntax error: {other:?}"))),
            }
        }
    }

    fn arguments(&mut self, name: String) -> Res<Node> {
        let mut args = Vec::new();
        while !self.is(")") {
            args.push(self.expression(0)?);
            if !self.is(")") {
                self.expect(",")?;
            }
        }
        self.place += 1;
        Ok(Node::Call(name, args))
    }
}

/// An expression, parsed to its end.
pub(super) fn parse(expression: &str) -> Res<Node> {
    let mut parser = Parser { tokens: tokens(expression)?, place: 0 };
    let node = parser.expression(0)?;
    if *parser.peek() != Tok::End {
        return Err(bad(format!("Unexpected token: {:?}", parser.peek())));
    }
    Ok(node)
}
