//! Enumerations whose variants have names in responses and tables.

/// An enumeration whose variants have names.
pub trait Named: Sized + Copy + 'static {
    /// The names in the order of the definition, for a schema and for messages.
    const NAMES: &'static [&'static str];

    /// The variant with this name.
    fn named(name: &str) -> Option<Self>;
}

/// Gives the variants of an enumeration their names: `name`, [`Named`], serde and the JSON schema.
#[macro_export]
macro_rules! named {
    ($($type:ty { $($variant:ident: $text:literal,)+ })+) => {$(
        impl $type {
            /// The name in responses and tables.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl $crate::named::Named for $type {
            const NAMES: &'static [&'static str] = &[$($text),+];

            fn named(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
                <Self as $crate::named::Named>::named(&text).ok_or_else(|| {
                    serde::de::Error::unknown_variant(
                        &text,
                        <Self as $crate::named::Named>::NAMES,
                    )
                })
            }
        }

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let names = <Self as $crate::named::Named>::NAMES;
                schemars::json_schema!({ "type": "string", "enum": names })
            }
        }
    )+};
}
pub use named;
