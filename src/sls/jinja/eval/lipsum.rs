//! `lipsum()`: text without meaning.

use super::args::Args;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Res, value_error};
use crate::sls::jinja::library::hash::random;
use crate::sls::jinja::methods::text::want_int;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::val::Val;

const WORDS: &str = "a ac accumsan ad adipiscing aenean aliquam aliquet amet ante aptent arcu at auctor augue bibendum blandit \
    class commodo condimentum congue consectetuer consequat conubia convallis cras cubilia cum curabitur curae cursus dapibus \
    diam dictum dictumst dignissim dis dolor donec dui duis egestas eget eleifend elementum elit enim erat eros est et etiam eu \
    euismod facilisi facilisis fames faucibus felis fermentum feugiat fringilla fusce gravida habitant habitasse hac hendrerit \
    hymenaeos iaculis id imperdiet in inceptos integer interdum ipsum justo lacinia lacus laoreet lectus leo libero ligula \
    litora lobortis lorem luctus maecenas magna magnis malesuada massa mattis mauris metus mi molestie mollis montes morbi mus \
    nam nascetur natoque nec neque netus nibh nisi nisl non nonummy nostra nulla nullam nunc odio orci ornare parturient pede \
    pellentesque penatibus per pharetra phasellus placerat platea porta porttitor posuere potenti praesent pretium primis proin \
    pulvinar purus quam quis quisque rhoncus ridiculus risus rutrum sagittis sapien scelerisque sed sem semper senectus sit \
    sociis sociosqu sodales sollicitudin suscipit suspendisse taciti tellus tempor tempus tincidunt torquent tortor tristique \
    turpis ullamcorper ultrices ultricies urna ut varius vehicula vel velit venenatis vestibulum vitae vivamus viverra volutpat \
    vulputate";

/// Paragraphs of it.
pub(super) fn generate(args: Args) -> Res<Val> {
    let [n, html, min, max] = args.bind("generate_lorem_ipsum", ["n", "html", "min", "max"], 0)?;
    let int = |val: Option<&Val>, default| val.map_or(Ok(default), want_int);
    let (n, min, max) = (int(n.as_ref(), 5)?, int(min.as_ref(), 20)?, int(max.as_ref(), 100)?);
    let html = html.as_ref().map_or(Ok(true), ops::truth)?;
    if min >= max {
        return Err(value_error(format!("empty range for randrange() ({min}, {max}, {})", max - min)));
    }
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    budget::room(num::size(n).saturating_mul(num::size(max)).saturating_mul(16))?;
    let mut paragraphs = Vec::new();
    for _ in 0..num::size(n) {
        let count = num::size(min) + random(num::size(max - min))?;
        budget::steps(count as u64)?;
        let mut paragraph = String::new();
        let (mut capital, mut comma, mut stop) = (true, 0, 0);
        for i in 0..count {
            let word = words.get(random(words.len())?).copied().unwrap_or("lorem");
            if i > 0 {
                paragraph.push(' ');
            }
            if capital {
                paragraph.push_str(&crate::sls::python::text::capitalize(word));
                capital = false;
            } else {
                paragraph.push_str(word);
            }
            if i > comma + 3 + random(5)? {
                comma = i;
                stop += 2;
                paragraph.push(',');
            } else if i > stop + 10 + random(10)? {
                (comma, stop) = (i, i);
                paragraph.push('.');
                capital = true;
            }
        }
        let trimmed = paragraph.trim_end_matches([',', '.']).to_owned() + ".";
        paragraphs.push(if html { format!("<p>{trimmed}</p>") } else { trimmed });
    }
    Ok(if html { Val::markup(paragraphs.join("\n")) } else { Val::str(paragraphs.join("\n\n")) })
}
