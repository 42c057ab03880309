//! Values of events and files to values of templates, and back.

use std::cell::OnceCell;
use std::sync::Arc;

use super::object::Object;
use super::ops;
use super::pyset;
use super::val::{Dict, Hashed, Val};
use crate::limits;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Res, limit_error, not_native};
use crate::sls::map::OrderedMap;
use crate::sls::value::{Key, Map, Value};

/// What a template can reach and change.
pub(crate) type Shared = Val;

/// A value that is converted when first asked for.
pub(crate) struct Lazy {
    from: Arc<Value>,
    val: OnceCell<Val>,
}

impl Lazy {
    pub(crate) fn new(from: Arc<Value>) -> Self {
        Lazy { from, val: OnceCell::new() }
    }

    pub(crate) fn get(&self) -> Val {
        self.val.get_or_init(|| from_value(&self.from)).clone()
    }
}

/// A value for templates. An integer that has no place here becomes a float, and what nests too deep `None`.
pub(crate) fn from_value(value: &Value) -> Val {
    converted(value, limits::JINJA_DATA_DEPTH_MAX)
}

fn converted(value: &Value, levels: usize) -> Val {
    let Some(inside) = levels.checked_sub(1) else { return Val::None };
    match value {
        Value::Null => Val::None,
        Value::Bool(b) => Val::Bool(*b),
        Value::Int(i) => Val::Int(*i),
        Value::BigInt(digits) => match digits.parse::<i128>() {
            Ok(i) => Val::int(i),
            Err(_) => Val::Float(digits.parse().unwrap_or(f64::INFINITY)),
        },
        Value::Float(f) => Val::Float(*f),
        Value::Str(text) => Val::str(text.as_str()),
        Value::Bytes(bytes) => Val::bytes(bytes.clone()),
        Value::List(items) => Val::list(items.iter().map(|item| converted(item, inside)).collect()),
        Value::Tuple(items) => Val::tuple(items.iter().map(|item| converted(item, inside)).collect()),
        Value::Set(items) => Val::set(items.iter().map(|item| Hashed(converted(item, inside))).collect()),
        Value::Map(map) => {
            let pairs =
                map.iter().map(|(key, value)| (Hashed(converted(&key.0, inside)), converted(value, inside)));
            Val::dict(pairs.collect())
        }
    }
}

/// Whether a value nests no deeper than so many levels, and its integers have a place here.
fn fits(value: &Value, levels: usize) -> Res<()> {
    let Some(inside) = levels.checked_sub(1) else {
        return Err(limit_error(format!("a value nests more than {} levels", limits::JINJA_DATA_DEPTH_MAX)));
    };
    budget::step()?;
    match value {
        Value::BigInt(digits) if digits.parse::<i128>().is_err() => {
            Err(not_native("an integer of more than 128 bits"))
        }
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
            items.iter().try_for_each(|item| fits(item, inside))
        }
        Value::Map(map) => map.values().try_for_each(|item| fits(item, inside)),
        _ => Ok(()),
    }
}

/// The same, for what a template made: what has no place here fails.
pub(crate) fn val(value: &Value) -> Res<Val> {
    fits(value, limits::JINJA_DATA_DEPTH_MAX)?;
    Ok(from_value(value))
}

/// A value out of a template, for a function of Salt.
pub(crate) fn value(val: &Val) -> Res<Value> {
    let _level = budget::deeper()?;
    budget::step()?;
    Ok(match val {
        Val::Undef(undef) => return Err(undef.fail()),
        Val::None => Value::Null,
        Val::Bool(b) => Value::Bool(*b),
        Val::Int(i) => Value::Int(*i),
        Val::Big(i) => Value::BigInt(i.to_string()),
        Val::Float(f) => Value::Float(*f),
        Val::Str(text) | Val::Markup(text) => Value::Str(text.to_string()),
        Val::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
        Val::List(list) => Value::List(list.items().iter().map(value).collect::<Res<_>>()?),
        Val::Tuple(tuple) => Value::Tuple(tuple.items.iter().map(value).collect::<Res<_>>()?),
        Val::Set(set) => Value::Set(pyset::order(set.items()).iter().map(value).collect::<Res<_>>()?),
        Val::Dict(dict) => {
            let mut map = Map::with_capacity(dict.len());
            for (key, of) in dict.pairs() {
                map.insert(Key(value(&key)?), value(&of)?);
            }
            Value::Map(map)
        }
        Val::Object(object) => match &**object {
            Object::Range(range) => {
                Value::List((0..range.len()).filter_map(|i| range.get(i)).map(Value::Int).collect())
            }
            Object::View(view, dict) => {
                Value::List(ops::view_items(*view, dict).iter().map(value).collect::<Res<_>>()?)
            }
            other => return Err(not_native(format!("a {} as an argument", other.type_name()))),
        },
    })
}

/// A value out of what templates left; what is no data of its own becomes text.
pub(crate) fn to_value(val: &Val) -> Value {
    budget::begin(budget::RenderLimits::default());
    value(val).unwrap_or(Value::Null)
}

/// A value out of msgpack.
pub(crate) fn from_msgpack(bytes: &[u8]) -> Result<Val, String> {
    let mut reader = Reader { bytes, place: 0 };
    let val = reader.value(0)?;
    if reader.place != bytes.len() {
        return Err(format!("msgpack: {} bytes after the value", bytes.len() - reader.place));
    }
    Ok(val)
}

struct Reader<'a> {
    bytes: &'a [u8],
    place: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.place.checked_add(len).ok_or("msgpack: a length beyond all bounds")?;
        let taken = self.bytes.get(self.place..end).ok_or("msgpack: it ends early")?;
        self.place = end;
        Ok(taken)
    }

    fn number(&mut self, len: usize) -> Result<u64, String> {
        Ok(self.take(len)?.iter().fold(0, |number, b| number << 8 | u64::from(*b)))
    }

    fn len(&mut self, bytes: usize) -> Result<usize, String> {
        usize::try_from(self.number(bytes)?).map_err(|_| "msgpack: a length beyond all bounds".to_owned())
    }

    fn value(&mut self, depth: usize) -> Result<Val, String> {
        if depth > limits::JINJA_DATA_DEPTH_MAX {
            return Err(format!("the data nests more than {} levels", limits::JINJA_DATA_DEPTH_MAX));
        }
        let marker = self.take(1)?.first().copied().unwrap_or(0);
        let low = usize::from(marker);
        Ok(match marker {
            0..=0x7f => Val::Int(i64::from(marker)),
            0x80..=0x8f => self.map(low & 0xf, depth)?,
            0x90..=0x9f => self.array(low & 0xf, depth)?,
            0xa0..=0xbf => self.text(low & 0x1f)?,
            0xc0 => Val::None,
            0xc2 => Val::Bool(false),
            0xc3 => Val::Bool(true),
            0xc4..=0xc6 => {
                let len = self.len(1 << (marker - 0xc4))?;
                Val::bytes(self.take(len)?.to_vec())
            }
            0xca => {
                let bits = u32::try_from(self.number(4)?).unwrap_or(0);
                Val::Float(f64::from(f32::from_bits(bits)))
            }
            0xcb => Val::Float(f64::from_bits(self.number(8)?)),
            0xcc..=0xcf => Val::int(i128::from(self.number(1 << (marker - 0xcc))?)),
            0xd0 => Val::Int(i64::from(self.take(1)?.first().copied().unwrap_or(0).cast_signed())),
            0xd1 => Val::Int(i64::from(u16::try_from(self.number(2)?).unwrap_or(0).cast_signed())),
            0xd2 => Val::Int(i64::from(u32::try_from(self.number(4)?).unwrap_or(0).cast_signed())),
            0xd3 => Val::Int(self.number(8)?.cast_signed()),
            0xd9..=0xdb => {
                let len = self.len(1 << (marker - 0xd9))?;
                self.text(len)?
            }
            0xdc | 0xdd => {
                let len = self.len(if marker == 0xdc { 2 } else { 4 })?;
                self.array(len, depth)?
            }
            0xde | 0xdf => {
                let len = self.len(if marker == 0xde { 2 } else { 4 })?;
                self.map(len, depth)?
            }
            0xd4..=0xd8 => {
                let kind = self.take(1)?.first().copied().unwrap_or(0);
                let len = 1 << (marker - 0xd4);
                self.extension(kind, len)?
            }
            0xc7..=0xc9 => {
                let len = self.len(1 << (marker - 0xc7))?;
                let kind = self.take(1)?.first().copied().unwrap_or(0);
                self.extension(kind, len)?
            }
            0xc1 => return Err("msgpack: a byte that means nothing".to_owned()),
            0xe0..=0xff => Val::Int(i64::from(marker.cast_signed())),
        })
    }

    /// Salt packs dates as text of type 78.
    fn extension(&mut self, _kind: u8, len: usize) -> Result<Val, String> {
        self.text(len)
    }

    fn text(&mut self, len: usize) -> Result<Val, String> {
        let bytes = self.take(len)?;
        Ok(match std::str::from_utf8(bytes) {
            Ok(text) => Val::str(text),
            Err(_) => Val::str(String::from_utf8_lossy(bytes).into_owned()),
        })
    }

    /// Room for so many members, of which each takes at least a byte.
    fn room(&self, len: usize) -> usize {
        len.min(self.bytes.len() - self.place)
    }

    fn array(&mut self, len: usize, depth: usize) -> Result<Val, String> {
        let mut items = Vec::with_capacity(self.room(len));
        for _ in 0..len {
            items.push(self.value(depth + 1)?);
        }
        Ok(Val::list(items))
    }

    fn map(&mut self, len: usize, depth: usize) -> Result<Val, String> {
        let mut map: OrderedMap<Hashed, Val> = OrderedMap::with_capacity(self.room(len));
        for _ in 0..len {
            let key = self.value(depth + 1)?;
            // msgpack allows lists as keys, Python does not.
            let key = match key {
                Val::List(list) => Val::tuple(list.items()),
                other => other,
            };
            let value = self.value(depth + 1)?;
            map.insert(Hashed(key), value);
        }
        Ok(Val::Dict(std::rc::Rc::new(Dict { map: std::cell::RefCell::new(map), ordered: false })))
    }
}
