//! Values that have names in configuration files.

/// The names as a text: `a, b or c`.
macro_rules! one_of {
    ($name:literal) => { $name };
    ($name:literal, $last:literal) => { concat!($name, " or ", $last) };
    ($name:literal, $($others:literal),+) => { concat!($name, ", ", one_of!($($others),+)) };
}

/// Defines values with names; with `instead`, they are read from configuration files.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $enum:ident { $($(#[$doc:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$meta])*
        pub enum $enum { $($(#[$doc])* $value,)* }

        impl $enum {
            /// The name in messages, metrics, JSON or configuration files.
            pub fn name(self) -> &'static str {
                match self {
                    $($enum::$value => $name,)*
                }
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
    ($(#[$meta:meta])* pub enum $enum:ident, $instead:literal { $($(#[$doc:meta])* $value:ident = $name:literal,)* }) => {
        $crate::named::named! { $(#[$meta])* pub enum $enum { $($(#[$doc])* $value = $name,)* } }

        impl $enum {
            /// Why another name is rejected.
            pub(crate) const UNKNOWN: &'static str = concat!("not ", one_of!($($name),*), "; ", $instead);

            /// The value with this name in configuration files, or `None`.
            pub fn by_name(name: &str) -> Option<Self> {
                [$($enum::$value),*].into_iter().find(|value| value.name() == name)
            }
        }
    };
}

pub(crate) use {named, one_of};
