//! Text that minijinja may parse: [`BoundedSource`], whose constructors bound the depth of the syntax tree.
//!
//! minijinja's parser, its code generator and the destructor of its tree recurse along the text and
//! set no limit for most constructs: 1,900 times `.a` or `-` overflow the stack of a thread, which
//! ends the program. This type is the only way to minijinja's parser here, even for callers with
//! their own templates (`clippy.toml` disallows minijinja's entry points elsewhere). It measures
//! the tokens first, without recursion. Nor does minijinja's lexer overflow a column.
//!
//! The types of its interface are minijinja's, whose machinery has no semantic versions: a caller depends on the same release as this crate.
//!
//! # Measure
//!
//! The measure is an upper limit of the tree's depth, counted per list item, argument and tag. Operators that bind loosely (`and`, `or`,
//! `if`, `else`) each count one, plus the deepest operand between them; in an operand each tighter operator (`not`, `==`, `+`, `|`,
//! `is`) counts one, plus the deepest of its operands; in that, each `.` and pair of brackets counts one, plus the deepest content of its
//! brackets.

use minijinja::machinery::ast::{Expr, Stmt};
use minijinja::machinery::{self, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error};

use crate::limits::{JINJA_BRACKETS_MAX, JINJA_STATEMENTS_MAX, JINJA_TREE_DEPTH_MAX};

/// A string within the limits.
#[derive(Debug, Clone)]
pub struct BoundedSource<'s> {
    text: &'s str,
    syntax: SyntaxConfig,
    is_expression: bool,
    assigned_depth: usize,
}

/// Why a string may not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct TooDeep {
    /// The offset of the token that exceeds the limit, in bytes.
    pub offset: usize,
    /// What exceeds the limit, and the limit.
    pub what: String,
}

impl<'s> BoundedSource<'s> {
    /// An expression, without braces around it.
    pub fn expression(text: &'s str) -> Result<Self, TooDeep> {
        Self::measured(text, true, SyntaxConfig::default())
    }

    /// A template.
    pub fn template(text: &'s str, syntax: SyntaxConfig) -> Result<Self, TooDeep> {
        Self::measured(text, false, syntax)
    }

    fn measured(text: &'s str, is_expression: bool, syntax: SyntaxConfig) -> Result<Self, TooDeep> {
        check_lines(text)?;
        let mut measure = Measure::default();
        for token in tokenize(text, is_expression, syntax.clone()) {
            // The parser stops at the same token, and reports it.
            let Ok((token, span)) = token else {
                break;
            };
            measure.token(&token).map_err(|what| TooDeep {
                offset: span.start_offset as usize,
                what,
            })?;
        }

        Ok(Self {
            text,
            syntax,
            is_expression,
            assigned_depth: measure.assigned_depth,
        })
    }

    /// The text.
    pub fn text(&self) -> &'s str {
        self.text
    }

    /// The beginning of the text up to `end`, in bytes; none within a character. The measure only grows with the text.
    pub fn up_to(&self, end: usize) -> Option<Self> {
        Some(Self {
            text: self.text.get(..end)?,
            ..self.clone()
        })
    }

    /// An upper limit for the nesting of values that assignments (`set`) add, one after the other.
    pub fn assigned_depth(&self) -> usize {
        self.assigned_depth
    }

    /// Tokens with their spans.
    pub fn tokens(
        &self,
    ) -> impl Iterator<Item = Result<(Token<'s>, machinery::Span), Error>> + use<'s> {
        tokenize(self.text, self.is_expression, self.syntax.clone())
    }

    /// The tree of an expression.
    #[expect(clippy::disallowed_methods, reason = "the text is measured")]
    pub fn parse_expression(&self) -> Result<Expr<'s>, Error> {
        machinery::parse_expr(self.text)
    }

    /// The tree of a template; `name` is the file in errors.
    #[expect(clippy::disallowed_methods, reason = "the text is measured")]
    pub fn parse_template(&self, name: &'s str) -> Result<Stmt<'s>, Error> {
        machinery::parse(self.text, name, self.syntax.clone())
    }

    /// Adds the template to an environment of the same syntax.
    #[expect(clippy::disallowed_methods, reason = "the text is measured")]
    pub fn add_to(&self, env: &mut Environment<'_>, name: &'static str) -> Result<(), Error> {
        env.add_template_owned(name, self.text.to_owned())
    }
}

/// minijinja counts columns in 16 bits and adds some.
fn check_lines(text: &str) -> Result<(), TooDeep> {
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end_matches('\n').len() >= usize::from(u16::MAX) {
            return Err(TooDeep {
                offset,
                what: "a line of 65,535 bytes or more".to_owned(),
            });
        }
        offset += line.len();
    }
    Ok(())
}

/// The depth of an item: of an expression between two commas.
#[derive(Debug, Default, Clone, Copy)]
struct Item {
    /// Operators that bind loosely.
    loose: usize,
    /// The deepest finished operand of them.
    deepest_clause: usize,
    /// Tighter operators of the current operand.
    tight: usize,
    /// The deepest finished operand of the tighter operators.
    deepest_operand: usize,
    /// Members and brackets of the current operand.
    postfix: usize,
    /// The deepest content of the operand's brackets.
    deepest_content: usize,
}

impl Item {
    fn end_operand(&mut self) {
        let operand = self.postfix + self.deepest_content;
        self.deepest_operand = self.deepest_operand.max(operand);
        self.postfix = 0;
        self.deepest_content = 0;
    }

    fn end_clause(&mut self) {
        self.end_operand();
        self.deepest_clause = self.deepest_clause.max(self.tight + self.deepest_operand);
        self.tight = 0;
        self.deepest_operand = 0;
    }

    /// Counts a word. The parser takes `and` and the like as names where an operand begins, behind a `.`, `|` or `is`: such a word ends
    /// nothing. Nor do `if` and `else`, because `if` may be the argument of a test. It counts as the operator nevertheless, because behind a name
    /// that is such a word the next one is an operator: `and or a`.
    fn word(&mut self, word: &str, expects: bool) {
        match word {
            "and" | "or" => {
                if !expects {
                    self.end_clause();
                }
                self.loose += 1;
            }
            "if" | "else" => self.loose += 1,
            "in" | "is" | "not" => {
                if !expects {
                    self.end_operand();
                }
                self.tight += 1;
            }
            // A name is a leaf.
            _ => {}
        }
    }

    fn depth(mut self) -> usize {
        self.end_clause();
        self.loose + self.deepest_clause
    }
}

/// An open pair of brackets, or a tag.
#[derive(Debug, Default)]
struct Level {
    item: Item,
    deepest_item: usize,
}

impl Level {
    fn depth(&self) -> usize {
        self.deepest_item.max(self.item.depth())
    }
}

/// What the current tag is.
#[derive(Debug, Default, PartialEq, Eq)]
enum Tag {
    /// The next token is its word.
    Begins,
    /// `set`, which has a body unless there is a `=` outside brackets.
    Set { is_block: bool },
    #[default]
    Other,
}

/// Whether an operand may begin behind a token. Where the parser's reading of a word depends on
/// more, the result is true: then the words behind it end nothing, and the measure is larger.
fn expects_after(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(word) => ["and", "or", "not", "if", "else", "in", "is"].contains(word),
        Token::Str(_)
        | Token::String(_)
        | Token::Int(_)
        | Token::Int128(_)
        | Token::Float(_)
        | Token::BracketClose
        | Token::ParenClose
        | Token::BraceClose => false,
        _ => true,
    }
}

/// Counts token by token.
#[derive(Debug)]
struct Measure {
    /// The tag or expression, and its open brackets.
    outer: Level,
    brackets: Vec<Level>,
    tag: Tag,
    /// Whether the next token begins an operand. A word such as `and` is then a name.
    expects: bool,
    /// The tree's levels of each open statement: one, and one more for each `elif`.
    statements: Vec<usize>,
    statement_depth: usize,
    assigned_depth: usize,
}

impl Default for Measure {
    fn default() -> Self {
        Self {
            outer: Level::default(),
            brackets: Vec::new(),
            tag: Tag::default(),
            expects: true,
            statements: Vec::new(),
            statement_depth: 0,
            assigned_depth: 0,
        }
    }
}

impl Measure {
    fn level(&mut self) -> &mut Level {
        self.brackets.last_mut().unwrap_or(&mut self.outer)
    }

    /// The depth of the tag up to here. Grows with each of its tokens.
    fn depth(&self) -> usize {
        self.brackets
            .iter()
            .chain([&self.outer])
            .map(Level::depth)
            .sum()
    }

    fn token(&mut self, token: &Token<'_>) -> Result<(), String> {
        if self.tag == Tag::Begins {
            self.tag = Tag::Other;
            if let Token::Ident(word) = token {
                self.expects = true;
                return self.statement(word);
            }
        }

        let expects = std::mem::replace(&mut self.expects, expects_after(token));
        let item = &mut self.level().item;
        match token {
            Token::VariableStart => self.outer = Level::default(),
            Token::BlockStart => {
                // A tag restarts, whatever was left open before it.
                self.outer = Level::default();
                self.tag = Tag::Begins;
                self.brackets.clear();
            }
            // What is left open does not reach beyond the tag.
            Token::VariableEnd => self.brackets.clear(),
            Token::BlockEnd => return self.end_tag(),

            Token::Ident(word) => item.word(word, expects),
            Token::Pipe
            | Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::FloorDiv
            | Token::Pow
            | Token::Mod
            | Token::Tilde
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte => {
                item.end_operand();
                item.tight += 1;
            }
            // Each member is one level above the value before it.
            Token::Dot => item.postfix += 1,

            Token::Comma | Token::Colon => self.end_item(),
            Token::Assign => {
                // A `set` with a value has no body.
                if self.brackets.is_empty() && self.tag == (Tag::Set { is_block: true }) {
                    self.tag = Tag::Set { is_block: false };
                }
                self.end_item();
            }

            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                item.postfix += 1;
                self.brackets.push(Level::default());

                // Limited apart from the depth, because each bracket costs the parser a dozen
                // calls.
                if self.brackets.len() > JINJA_BRACKETS_MAX {
                    return Err(format!("more than {JINJA_BRACKETS_MAX} nested brackets"));
                }
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                if let Some(closed) = self.brackets.pop() {
                    let content = closed.depth();
                    let item = &mut self.level().item;
                    item.deepest_content = item.deepest_content.max(content);
                }
            }

            // Names and constants are leaves.
            Token::TemplateData(_)
            | Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_) => {}
        }

        // After each token: the error names the first token beyond the limit.
        if self.depth() > JINJA_TREE_DEPTH_MAX {
            return Err(format!(
                "an expression of more than {JINJA_TREE_DEPTH_MAX} nested operations"
            ));
        }
        Ok(())
    }

    fn end_item(&mut self) {
        let level = self.level();
        level.deepest_item = level.depth();
        level.item = Item::default();
    }

    /// The word of a tag.
    fn statement(&mut self, word: &str) -> Result<(), String> {
        match word {
            "set" => self.tag = Tag::Set { is_block: true },
            "for" | "if" | "with" | "autoescape" | "filter" | "block" | "macro" | "call" => {
                return self.begin_statement();
            }
            // The tree has it within the `if` before.
            "elif" => {
                if let Some(levels) = self.statements.last_mut() {
                    *levels += 1;
                    self.statement_depth += 1;
                }
                return self.check_statements();
            }
            // The parser checks that the end belongs to this statement.
            end if end.starts_with("end") => {
                let levels = self.statements.pop().unwrap_or(0);
                self.statement_depth = self.statement_depth.saturating_sub(levels);
            }
            _ => {}
        }

        Ok(())
    }

    fn begin_statement(&mut self) -> Result<(), String> {
        self.statements.push(1);
        self.statement_depth += 1;
        self.check_statements()
    }

    fn check_statements(&self) -> Result<(), String> {
        if self.statement_depth > JINJA_STATEMENTS_MAX {
            return Err(format!(
                "more than {JINJA_STATEMENTS_MAX} nested tags and `elif`"
            ));
        }
        Ok(())
    }

    fn end_tag(&mut self) -> Result<(), String> {
        let tag = std::mem::take(&mut self.tag);
        if let Tag::Set { is_block } = tag {
            self.assigned_depth += self.depth();
            if is_block {
                self.begin_statement()?;
            }
        }
        self.brackets.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
