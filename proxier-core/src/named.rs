//! Values that have names in configuration files.

/// The names as a text: `a, b or c`.
macro_rules! one_of {
    ($name:literal) => { $name };
    ($name:literal, $last:literal) => { concat!($name, " or ", $last) };
    ($name:literal, $($others:literal),+) => { concat!($name, ", ", one_of!($($others),+)) };
}

/// Defines values with names, and the error for an unknown name.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $enum:ident, $instead:literal { $($(#[$doc:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$meta])*
        pub enum $enum { $($(#[$doc])* $value,)* }

        impl $enum {
            /// Why another name is rejected.
            pub(crate) const UNKNOWN: &'static str = concat!("not ", one_of!($($name),*), "; ", $instead);

            /// The name in configuration files.
            pub fn name(self) -> &'static str {
                match self {
                    $($enum::$value => $name,)*
                }
            }

            /// The value with this name in configuration files, or `None`.
            pub fn by_name(name: &str) -> Option<Self> {
                [$($enum::$value),*].into_iter().find(|value| value.name() == name)
            }
        }
    };
}

pub(crate) use {named, one_of};
