//! All limits of reading and rendering.

/// Bytes of a rendered SLS file, and of text that a template parses as YAML or JSON. Salt sets no
/// limit and parses a megabyte in about ten seconds.
pub const SLS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Nesting depth in YAML and JSON; each level uses stack. Salt's recursion fails below 500, when it copies a chunk; real files
/// have ten levels.
pub const SLS_DEPTH_MAX: usize = 200;

/// Values, and bytes of text in them, that aliases and merge keys may add to a YAML document. Salt
/// shares such values, but then traverses all of them.
pub const YAML_ALIASED_VALUES_MAX: usize = 100_000;
/// See [`YAML_ALIASED_VALUES_MAX`].
pub const YAML_ALIASED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Digits of an integer in YAML and JSON, as in Python.
pub const INTEGER_DIGITS_MAX: usize = 4300;

/// Requisites between the chunks of one event, each pattern counted for all its matches. Salt also
/// compares all pairs.
pub const REQUISITES_MAX: usize = 1_000_000;

/// Steps of one rendering of a template: expressions, loop iterations, traversed members of values. A million take
/// about 50 ms.
pub const JINJA_STEPS_MAX: u64 = 2_000_000;

/// Bytes allocated for values during one rendering, freed or not, and its output.
pub const JINJA_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Nesting depth of values that native templates traverse. Salt's renderer gets templates with deeper values.
pub const JINJA_DEPTH_MAX: usize = 120;

/// Bytes of a string that one operation of a native template produces. Salt's renderer gets templates with longer strings.
pub const JINJA_VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Depth of the syntax tree of one expression of a template or filter, by the measure of [`bounded`](crate::jinja::bounded). minijinja recurses along it.
pub const JINJA_TREE_DEPTH_MAX: usize = 100;

/// Nested brackets of one expression of a template or filter. Each costs minijinja's parser a dozen calls.
pub const JINJA_BRACKETS_MAX: usize = 40;

/// Nested tags of a template; `elif` nests too.
pub const JINJA_STATEMENTS_MAX: usize = 120;

/// Operators, brackets and names in one tag of a native template. They nest in the syntax tree.
pub const JINJA_TAG_TOKENS_MAX: usize = 300;

/// Nesting depth of event data visible to templates. Deeper data could not be printed.
pub const JINJA_DATA_DEPTH_MAX: usize = 100;

/// Members of a `range`, as Jinja's sandbox has it.
pub const JINJA_RANGE_MAX: usize = 100_000;
