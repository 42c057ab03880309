//! Salt's filters about addresses.

use super::numbers;
use super::sequences;
use super::{Filter, text_arg};
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Res, not_native, value_error};
use crate::sls::jinja::library::hash;
use crate::sls::jinja::library::ip::Ip;
use crate::sls::jinja::methods::text::want_str;
use crate::sls::jinja::syntax::ast;
use crate::sls::jinja::values::object::Object;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::Val;
use crate::sls::python::text;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("is_ip", is_ip),
    ("is_ipv4", is_ipv4),
    ("is_ipv6", is_ipv6),
    ("ipaddr", ipaddr),
    ("ipv4", ipv4),
    ("ipv6", ipv6),
    ("ip_host", ip_host),
    ("ipwrap", ipwrap),
    ("network_hosts", network_hosts),
    ("network_size", network_size),
    ("filter_by_networks", filter_by_networks),
    ("gen_mac", gen_mac),
    ("mac_str_to_bytes", mac_str_to_bytes),
];

/// What an address must be, by the names that Salt has for it.
const OPTIONS: &[(&str, fn(Ip) -> bool)] = &[
    ("global", |ip| !ip.is_private()),
    ("link-local", Ip::is_link_local),
    ("linklocal", Ip::is_link_local),
    ("ll", Ip::is_link_local),
    ("link_local", Ip::is_link_local),
    ("loopback", Ip::is_loopback),
    ("lo", Ip::is_loopback),
    ("multicast", Ip::is_multicast),
    ("private", Ip::is_private),
    ("public", |ip| !ip.is_private()),
    ("reserved", Ip::is_reserved),
    ("site-local", Ip::is_site_local),
    ("sl", Ip::is_site_local),
    ("site_local", Ip::is_site_local),
    ("unspecified", Ip::is_unspecified),
];

/// An address out of a value: text, or the number that it is.
fn address(val: &Val) -> Res<Option<Ip>> {
    match val {
        Val::Str(text) | Val::Markup(text) => {
            if text.contains('%') {
                return Err(not_native("an address with a scope"));
            }
            Ok(Ip::parse(text, false).or_else(|| Ip::parse(text, true)))
        }
        Val::Int(_) | Val::Big(_) | Val::Bool(_) => {
            let bits = val.as_int().and_then(|i| u128::try_from(i).ok());
            Ok(bits.map(|bits| Ip { v6: u32::try_from(bits).is_err(), bits, prefix: None }))
        }
        Val::Tuple(_) | Val::List(_) | Val::Bytes(_) => Err(not_native("an address that is no text")),
        _ => Ok(None),
    }
}

/// An address of this version that is what the options say, as text.
fn version(val: &Val, v6: bool, options: &Val) -> Res<Option<String>> {
    let Some(ip) = address(val)?.filter(|ip| ip.v6 == v6) else { return Ok(None) };
    if ops::truth(options)? {
        let options = want_str(options, "split")?;
        let wanted: Vec<&str> =
            options.split(',').map(|option| option.trim_matches(text::is_space)).collect();
        if OPTIONS.iter().any(|(name, is)| wanted.contains(name) && !is(ip)) {
            return Ok(None);
        }
    }
    Ok(Some(ip.to_string()))
}

fn options(args: Args) -> Res<Val> {
    let [options] = args.bind("ip", ["options"], 0)?;
    Ok(options.unwrap_or(Val::None))
}

fn is_version(val: &Val, v6: bool, options: &Val) -> Res<bool> {
    if matches!(val, Val::List(_) | Val::Tuple(_) | Val::Dict(_)) {
        return Ok(false);
    }
    Ok(version(val, v6, options)?.is_some())
}

fn is_ip(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let options = options(args)?;
    Ok(Val::Bool(is_version(&val, false, &options)? || is_version(&val, true, &options)?))
}

fn is_ipv4(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    is_version(&val, false, &options(args)?).map(Val::Bool)
}

fn is_ipv6(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    is_version(&val, true, &options(args)?).map(Val::Bool)
}

/// The members that a list filter takes.
fn members(interp: &mut Interp<'_>, val: &Val) -> Res<Option<Vec<Val>>> {
    Ok(match val {
        Val::List(_) | Val::Tuple(_) => Some(interp.collect(val)?),
        Val::Object(object) if matches!(&**object, Object::Iter(iter) if iter.type_name == "generator") => {
            Some(interp.collect(val)?)
        }
        _ => None,
    })
}

/// `_ipv_filter`: of text one, of a list those that fit.
fn of_version(interp: &mut Interp<'_>, val: &Val, v6: bool, options: &Val) -> Res<Val> {
    if val.as_str().is_some() || matches!(val, Val::Bytes(_)) {
        return Ok(version(val, v6, options)?.map_or(Val::None, Val::str));
    }
    let Some(members) = members(interp, val)? else { return Ok(Val::None) };
    let mut kept = Vec::new();
    for member in &members {
        kept.extend(version(member, v6, options)?.map(Val::str));
    }
    Ok(Val::list(kept))
}

fn ipv4(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    of_version(interp, &val, false, &options(args)?)
}

fn ipv6(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    of_version(interp, &val, true, &options(args)?)
}

fn of_any(interp: &mut Interp<'_>, val: &Val, options: &Val) -> Res<Val> {
    let val = match members(interp, val)? {
        Some(members) => Val::list(members),
        None => val.clone(),
    };
    let (four, six) = (of_version(interp, &val, false, options)?, of_version(interp, &val, true, options)?);
    if matches!(four, Val::None) || matches!(six, Val::None) {
        return Ok(if ops::truth(&four)? { four } else { six });
    }
    ops::binary(ast::BinOp::Add, &four, &six)
}

fn ipaddr(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    of_any(interp, &val, &options(args)?)
}

/// Each address of a value through something; one alone stays alone.
fn each(interp: &mut Interp<'_>, val: &Val, args: Args, of: fn(Ip) -> Res<Val>) -> Res<Val> {
    let [options, version] = args.bind("ip", ["options", "version"], 0)?;
    let options = options.unwrap_or(Val::None);
    let out = match version.as_ref().and_then(Val::as_int) {
        Some(4) => of_version(interp, val, false, &options)?,
        Some(6) => of_version(interp, val, true, &options)?,
        Some(other) if other != 0 => Val::None,
        _ => of_any(interp, val, &options)?,
    };
    if !ops::truth(&out)? {
        return Ok(Val::None);
    }
    let found = match &out {
        Val::List(list) => list.items(),
        _ => vec![out.clone()],
    };
    let mut made = Vec::new();
    for ip in &found {
        let text = ip.as_str().unwrap_or_default();
        let ip = Ip::parse(text, true)
            .ok_or_else(|| value_error(format!("'{text}' does not appear to be an IPv4 or IPv6 network")))?;
        made.push(of(ip)?);
        if made.len() == 1 && !matches!(val, Val::List(_) | Val::Tuple(_)) && members(interp, val)?.is_none()
        {
            return Ok(made.pop().unwrap_or(Val::None));
        }
    }
    Ok(Val::list(made))
}

fn ip_host(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    each(interp, &val, args, |ip| Ok(Val::str(ip.to_string())))
}

fn network_hosts(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    each(interp, &val, args, |ip| {
        let (first, mask) = (ip.first(), ip.hosts_mask());
        let last = first | mask;
        let (from, to) = match (mask, ip.v6) {
            (0 | 1, _) => (first, last),
            (_, true) => (first + 1, last),
            (_, false) => (first + 1, last - 1),
        };
        let count = to - from + 1;
        budget::room(usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(64))?;
        budget::steps(u64::try_from(count).unwrap_or(u64::MAX))?;
        Ok(Val::list((from..=to).map(|bits| Val::str(Ip { bits, prefix: None, ..ip }.to_string())).collect()))
    })
}

fn network_size(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    each(interp, &val, args, |ip| {
        match i128::try_from(ip.hosts_mask()).ok().and_then(|mask| mask.checked_add(1)) {
            Some(size) => Ok(Val::int(size)),
            None => Err(not_native("an integer of more than 128 bits")),
        }
    })
}

fn bracketed(val: &Val) -> Res<Val> {
    let is_v6 = match val {
        Val::Str(_) | Val::Markup(_) | Val::Int(_) | Val::Big(_) | Val::Bool(_) => {
            version(val, true, &Val::None)?.is_some()
        }
        _ => false,
    };
    if !is_v6 {
        return Ok(val.clone());
    }
    let plain = repr::str(val)?;
    match Ip::parse(plain.trim_start_matches('[').trim_end_matches(']'), false) {
        Some(ip) if ip.v6 => Ok(Val::str(format!("[{ip}]"))),
        Some(ip) => Ok(Val::str(ip.to_string())),
        None => Err(value_error(format!("'{plain}' does not appear to be an IPv4 or IPv6 address"))),
    }
}

fn ipwrap(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("ipwrap")?;
    match &val {
        Val::List(list) => Ok(Val::list(list.items().iter().map(bracketed).collect::<Res<_>>()?)),
        Val::Tuple(tuple) => Ok(Val::list(tuple.items.iter().map(bracketed).collect::<Res<_>>()?)),
        other => bracketed(other),
    }
}

fn filter_by_networks(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [networks] = args.bind("filter_by_networks", ["networks"], 1)?;
    let networks = networks.unwrap_or(Val::None);
    if matches!(networks, Val::None) {
        return Ok(val);
    }
    let mut known = Vec::new();
    for network in interp.collect(&networks)? {
        let text = want_str(&network, "ip_network")?;
        let wrong = || value_error(format!("'{text}' does not appear to be an IPv4 or IPv6 network"));
        let ip = Ip::parse(text, true).ok_or_else(wrong)?;
        if ip.bits != ip.first() {
            return Err(value_error(format!("{text} has host bits set")));
        }
        known.push(ip);
    }
    let filtered = |interp: &mut Interp<'_>, ips: &Val| -> Res<Val> {
        let mut kept = Vec::new();
        for ip in interp.collect(ips)? {
            for network in &known {
                budget::step()?;
                let text = want_str(&ip, "ip_address")?;
                let parsed = Ip::parse(text, false).ok_or_else(|| {
                    value_error(format!("'{text}' does not appear to be an IPv4 or IPv6 address"))
                })?;
                if parsed.is_in(*network) {
                    kept.push(ip.clone());
                }
            }
        }
        Ok(Val::list(kept))
    };
    match &val {
        Val::Dict(dict) => {
            let mut pairs = Vec::new();
            for (name, ips) in dict.pairs() {
                pairs.push((name, filtered(interp, &ips)?));
            }
            sequences::dict_of(pairs)
        }
        Val::List(_) | Val::Tuple(_) | Val::Str(_) | Val::Markup(_) => filtered(interp, &val),
        other => Err(value_error(format!("Do not know how to filter a <class '{}'>", other.type_name()))),
    }
}

fn gen_mac(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("gen_mac")?;
    let bytes = hash::random_bytes(3)?;
    let tail: Vec<String> = bytes.iter().map(|b| format!("{b:02X}")).collect();
    Ok(Val::str(format!("{}:{}", repr::str(&val)?, tail.join(":"))))
}

fn mac_str_to_bytes(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("mac_str_to_bytes")?;
    if let Val::Undef(undef) = &val {
        return Err(undef.fail());
    }
    let plain = text_arg(Some(val), "")?;
    let chars: Vec<char> = plain.chars().collect();
    let digits: String = match (chars.len(), chars.get(2)) {
        (12, _) => plain.to_string(),
        (17, Some(sep)) => plain.replace(*sep, ""),
        _ => return Err(value_error("Invalid MAC address")),
    };
    let digits: Vec<char> = digits.chars().collect();
    let mut bytes = Vec::new();
    for pair in digits.chunks(2).take(6) {
        let pair: String = pair.iter().collect();
        let number = numbers::parse_int(&pair, 16)?;
        bytes.push(u8::try_from(number).map_err(|_| value_error("bytes must be in range(0, 256)"))?);
    }
    if bytes.len() < 6 {
        return Err(value_error("Invalid MAC address"));
    }
    Ok(Val::bytes(bytes))
}
