//! `strftime`: dates out of numbers and text.

use std::fmt::Write as _;

use super::numbers;
use super::{Filter, text_arg};
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Res, not_native, value_error};
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::val::Val;
use crate::sls::python::text::is_space;

pub(super) const FILTERS: &[(&str, Filter)] = &[("strftime", strftime), ("date_format", strftime)];

/// A moment in time, as the parts of a date without a zone.
#[derive(Debug, Clone, Copy, Default)]
struct Moment {
    /// Days since 1970.
    days: i64,
    seconds: i64,
    micros: i64,
}

/// Days since 1970 of a date.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day of days since 1970.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days - era * 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl Moment {
    /// A number of seconds since 1970; local time is taken to be UTC only if it is.
    fn of_number(seconds: f64) -> Res<Moment> {
        if !utc_is_local() {
            return Err(not_native("a date of a number where local time is not UTC"));
        }
        let wrong = || value_error("Unable to parse a date out of this number");
        if !seconds.is_finite() || seconds.abs() > 2.5e11 {
            return Err(wrong());
        }
        let whole = seconds.floor();
        let micros = ((seconds - whole) * 1e6).round_ties_even();
        let whole = num::trunc(whole).and_then(|i| i64::try_from(i).ok()).ok_or_else(wrong)?;
        let micros = num::trunc(micros).and_then(|i| i64::try_from(i).ok()).unwrap_or(0);
        let (whole, micros) =
            if micros >= 1_000_000 { (whole + 1, micros - 1_000_000) } else { (whole, micros) };
        let moment = Moment { days: whole.div_euclid(86_400), seconds: whole.rem_euclid(86_400), micros };
        let (year, ..) = date_of(moment.days);
        if (1..=9999).contains(&year) { Ok(moment) } else { Err(wrong()) }
    }

    /// A date as ISO and its neighbours write it; `None` for another form.
    fn parse(text: &str) -> Option<Moment> {
        let text = text.trim_matches(is_space);
        let digits = |text: &str, min: usize, max: usize| -> Option<i64> {
            ((min..=max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()))
                .then(|| text.parse().ok())
                .flatten()
        };
        let split = text.find(['T', ' ']);
        let (date, time) = match split {
            Some(at) => (text.get(..at)?, Some(text.get(at + 1..)?.trim_start())),
            None => (text, None),
        };
        let sep = if date.contains('/') { '/' } else { '-' };
        let mut parts = date.split(sep);
        let (first, second, third) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let (year, month, day) = if first.len() == 4 {
            (digits(first, 4, 4)?, digits(second, 1, 2)?, digits(third, 1, 2)?)
        } else if sep == '/' && third.len() == 4 {
            // As in the United States.
            (digits(third, 4, 4)?, digits(first, 1, 2)?, digits(second, 1, 2)?)
        } else {
            return None;
        };
        if !(1..=12).contains(&month) || !(1..=days_in(year, month)).contains(&day) || year == 0 {
            return None;
        }
        let mut moment = Moment { days: days_of(year, month, day), ..Moment::default() };
        let Some(time) = time else { return Some(moment) };
        let time = without_zone(time)?;
        let mut parts = time.split(':');
        let hour = digits(parts.next()?, 1, 2)?;
        let minute = digits(parts.next()?, 2, 2)?;
        let (second, micros) = match parts.next() {
            None => (0, 0),
            Some(part) => match part.split_once('.') {
                Some((second, fraction)) => {
                    digits(fraction, 1, 9)?;
                    (digits(second, 2, 2)?, 0)
                }
                None => (digits(part, 2, 2)?, 0),
            },
        };
        if parts.next().is_some() || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        moment.seconds = hour * 3600 + minute * 60 + second;
        moment.micros = micros;
        Some(moment)
    }
}

/// A time without its zone, which Salt's parser reads and then forgets.
fn without_zone(time: &str) -> Option<&str> {
    if let Some(time) = time.strip_suffix('Z').or_else(|| time.strip_suffix(" UTC")) {
        return Some(time);
    }
    let Some(at) = time.rfind(['+', '-']) else { return Some(time) };
    let (time, zone) = time.split_at(at);
    let digits = zone.get(1..)?.replace(':', "");
    (digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| time.trim_end())
}

/// Whether this process takes UTC for local time: what it was told, or what the machine says.
fn utc_is_local() -> bool {
    const UTC: [&str; 5] = ["", "UTC", "UTC0", "Etc/UTC", ":UTC"];
    if let Ok(zone) = std::env::var("TZ") {
        return UTC.contains(&zone.as_str());
    }
    match std::fs::read_link("/etc/localtime") {
        Ok(path) => ["UTC", "Etc/UTC", "Universal", "Zulu", "UCT"].iter().any(|name| path.ends_with(name)),
        Err(_) => true,
    }
}

const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The week of ISO, and the year it belongs to.
fn iso_week(year: i64, of_year: i64, weekday: i64) -> (i64, i64) {
    let week = (of_year - weekday + 9) / 7;
    let weeks_in = |year: i64| {
        let first = (days_of(year, 1, 1) + 3).rem_euclid(7);
        if first == 3 || (first == 2 && leap(year)) { 53 } else { 52 }
    };
    if week < 1 {
        (year - 1, weeks_in(year - 1))
    } else if week > weeks_in(year) {
        (year + 1, 1)
    } else {
        (year, week)
    }
}

fn formatted(moment: Moment, format: &str) -> Res<String> {
    let (year, month, day) = date_of(moment.days);
    let (hour, minute, second) = (moment.seconds / 3600, moment.seconds / 60 % 60, moment.seconds % 60);
    let weekday = (moment.days + 3).rem_euclid(7);
    let of_year = moment.days - days_of(year, 1, 1);
    let name = |names: &[&'static str], i: i64| names.get(num::size(i)).copied().unwrap_or_default();
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::with_capacity(format.len() * 2);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let again = |format: &str| formatted(moment, format);
        let kind = chars.next();
        let part = match kind {
            Some('Y') => format!("{year}"),
            Some('y') => format!("{:02}", year % 100),
            Some('C') => format!("{:02}", year / 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('H') => format!("{hour:02}"),
            Some('k') => format!("{hour:2}"),
            Some('I') => format!("{hour12:02}"),
            Some('l') => format!("{hour12:2}"),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('f') => format!("{:06}", moment.micros),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('P') => if hour < 12 { "am" } else { "pm" }.to_owned(),
            Some('j') => format!("{:03}", of_year + 1),
            Some('A') => name(&WEEKDAYS, weekday).to_owned(),
            Some('a') => name(&WEEKDAYS, weekday).chars().take(3).collect(),
            Some('B') => name(&MONTHS, month - 1).to_owned(),
            Some('b' | 'h') => name(&MONTHS, month - 1).chars().take(3).collect(),
            Some('w') => format!("{}", (weekday + 1) % 7),
            Some('u') => format!("{}", weekday + 1),
            Some('U') => format!("{:02}", (of_year + 7 - (weekday + 1) % 7) / 7),
            Some('W') => format!("{:02}", (of_year + 7 - weekday) / 7),
            Some('V') => format!("{:02}", iso_week(year, of_year + 1, weekday + 1).1),
            Some('G') => format!("{}", iso_week(year, of_year + 1, weekday + 1).0),
            Some('g') => format!("{:02}", iso_week(year, of_year + 1, weekday + 1).0 % 100),
            Some('s') if utc_is_local() => format!("{}", moment.days * 86_400 + moment.seconds),
            Some('s') => return Err(not_native("strftime with %s where local time is not UTC")),
            Some('z' | 'Z') => String::new(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            Some('F') => again("%Y-%m-%d")?,
            Some('T' | 'X') => again("%H:%M:%S")?,
            Some('R') => again("%H:%M")?,
            Some('D' | 'x') => again("%m/%d/%y")?,
            Some('r') => again("%I:%M:%S %p")?,
            Some('c') => again("%a %b %e %H:%M:%S %Y")?,
            Some(other) => return Err(not_native(format!("strftime with %{other}"))),
            None => "%".to_owned(),
        };
        budget::room(out.len() + part.len())?;
        let _ = write!(out, "{part}");
    }
    Ok(out)
}

fn strftime(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [format] = args.bind("strftime", ["format"], 0)?;
    let format = text_arg(format, "%Y-%m-%d")?;
    let moment = match &val {
        Val::None => return Err(not_native("the date of now")),
        Val::Undef(undef) => return Err(value_error(undef.message.clone())),
        Val::Str(text) | Val::Markup(text) => match Moment::parse(text) {
            Some(moment) => moment,
            None => {
                let number = text.trim_matches(is_space);
                // Salt's parser of dates takes short runs of digits for years and times.
                if !number.is_empty()
                    && number.len() >= 9
                    && number.bytes().all(|b| b.is_ascii_digit() || b == b'.')
                {
                    Moment::of_number(numbers::parse_float(number)?)?
                } else {
                    return Err(not_native(format!("the date {text:?}")));
                }
            }
        },
        other => match other.as_float() {
            Some(seconds) => Moment::of_number(seconds)?,
            None => {
                return Err(value_error(format!("Unable to parse a date out of a {}", other.type_name())));
            }
        },
    };
    formatted(moment, &format).map(Val::str)
}
