//! Macros for what every crate above writes again: settings, the kernel's numbers, errors' `Debug`, values as text.

/// Writes methods that set something and return the value: for options, and for the struct that has these options in a
/// field, if there is one.
#[macro_export]
macro_rules! settings {
    ($options:ident, $owner:ident in $field:ident:
        $($(#[$doc:meta])* $method:ident($($argument:ident: $type:ty),*) |$of:ident| $set:expr;)*
    ) => {
        $crate::settings! { $options: $($(#[$doc])* $method($($argument: $type),*) |$of| $set;)* }

        impl $owner { $(
            $(#[$doc])*
            #[must_use]
            pub fn $method(mut self $(, $argument: $type)*) -> Self {
                let $of = &mut self.$field;
                $set;
                self
            }
        )* }
    };
    ($options:ident: $($(#[$doc:meta])* $method:ident($($argument:ident: $type:ty),*) |$of:ident| $set:expr;)*) => {
        impl $options { $(
            $(#[$doc])*
            #[must_use]
            pub fn $method(mut self $(, $argument: $type)*) -> Self {
                let $of = &mut self;
                $set;
                self
            }
        )* }
    };
}

/// Declares the kernel's numbers with their C names. For the unit tests of the crate, which compare them with the C
/// header, there is also a list of all.
#[macro_export]
macro_rules! numbers {
    (const $all:ident; $($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("`", stringify!($name), "`.")]
            pub const $name: $type = $value;
        )*

        /// All of them, by their names in the header.
        #[cfg(test)]
        #[allow(clippy::as_conversions, clippy::cast_lossless, clippy::cast_possible_wrap, reason = "small numbers")]
        pub(crate) const $all: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

/// `Debug` of errors: the message and its causes, so that a `main` that returns the error is readable.
#[macro_export]
macro_rules! debug_is_message {
    ($($error:ty),*) => { $(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)?;
                let mut causes = ::std::iter::successors(::std::error::Error::source(self), |&cause| cause.source());
                causes.try_for_each(|cause| write!(f, ": {cause}"))
            }
        }
    )* };
}

/// `Serialize` and `Deserialize` of a value as the text that its `Display` writes and its `FromStr` parses, or that two
/// other functions do. For errors there is also what is expected, in words. The caller's crate needs `serde`.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty, $expecting:literal) => {
        $crate::serde_as_text!($type, $expecting, |value: &$type| value.to_string(), str::parse::<$type>);
    };
    ($type:ty, $expecting:literal, $write:expr, $read:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&$write(self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        $read(text).map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Visitor)
            }
        }
    };
}
