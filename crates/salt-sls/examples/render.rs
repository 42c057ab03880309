//! Renders an SLS file with the data of an event, and prints the values and the low chunks.
//!
//! ```text
//! cargo run --example render -- FILE.sls [DATA.yaml]
//! ```
//!
//! The data is YAML or JSON, by default `{id: web1}`.

use std::process::ExitCode;
use std::sync::Arc;

use salt_sls::functions::{NAMES, NativeFunctions};
use salt_sls::jinja::{Ambient, Context, Data, Engine, EngineOptions, SaltFunctions, Source};
use salt_sls::{Map, Value, compile, python, yaml};

/// Prints a value as a tree, a line for each scalar.
fn print(value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Map(map) if !map.is_empty() => {
            for (key, value) in map {
                println!("{indent}{}:", python::str(&key.0));
                print(value, depth + 1);
            }
        }
        Value::List(items) if !items.is_empty() => {
            for item in items {
                println!("{indent}-");
                print(item, depth + 1);
            }
        }
        // Empty collections as well.
        scalar => println!("{indent}{}", python::repr(scalar)),
    }
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

fn run(path: &str, data: Option<&str>) -> Result<(), String> {
    let data = match data {
        Some(path) => yaml::load(&read(path)?).map_err(|error| format!("{path}: {error}"))?,
        None => Value::Map(Map::from_iter([("id".into(), "web1".into())])),
    };
    let text = read(path)?;

    // The master's grains and options; here there are none.
    let none = Arc::new(Value::Map(Map::default()));
    let ambient = Arc::new(Ambient::new(Arc::clone(&none), Arc::clone(&none), false));
    let salt: Arc<dyn SaltFunctions> = Arc::new(NativeFunctions {
        opts: Arc::clone(&none),
        grains: none,
    });

    let engine = Engine::new(EngineOptions {
        functions: NAMES.map(str::to_owned).to_vec(),
        ..EngineOptions::default()
    });
    let context = Context {
        tag: "example",
        data: &Data::from_value(&data),
        ambient: &ambient,
        salt: &salt,
    };
    let source = Source { path, text: &text };
    let rendered = engine
        .render(&source, &context)
        .map_err(|error| error.to_string())?;

    println!("# values");
    let values =
        yaml::load(&rendered.text).map_err(|error| format!("{path}, rendered: {error}"))?;
    print(&values, 0);

    // Low chunks are what the reactor calls; a file of states has high data as well.
    println!("\n# low chunks");
    let high = compile::high(&rendered.text, path).map_err(|error| format!("{path}: {error}"))?;
    let low = compile::low(vec![high]).map_err(|error| format!("{path}: {error}"))?;
    print(&Value::List(low.into_iter().map(Value::Map).collect()), 0);
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.as_slice() {
        [path] => run(path, None),
        [path, data] => run(path, Some(data)),
        _ => Err("usage: render FILE.sls [DATA.yaml]".to_owned()),
    };

    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("render: {message}");
            ExitCode::FAILURE
        }
    }
}
