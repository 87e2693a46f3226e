//! Macros for tables: settings that both a struct and its owner have, and the kernel's numbers.

/// Writes `with_…` methods for options, and for the struct that has these options in a field.
///
/// ```
/// #[derive(Default)]
/// pub struct Options {
///     size: u32,
/// }
///
/// #[derive(Default)]
/// pub struct Spec {
///     options: Options,
/// }
///
/// netlink_batch::settings! {
///     Options, Spec in options:
///     /// Sets the size.
///     with_size(size: u32) |options| options.size = size;
/// }
///
/// assert_eq!(Options::default().with_size(7).size, Spec::default().with_size(7).options.size);
/// ```
#[macro_export]
macro_rules! settings {
    ($options:ident, $owner:ident in $field:ident:
        $($(#[$doc:meta])* $method:ident($($argument:ident: $type:ty),*) |$of:ident| $set:expr;)*
    ) => {
        impl $options { $(
            $(#[$doc])*
            #[must_use]
            pub fn $method(mut self $(, $argument: $type)*) -> Self {
                let $of = &mut self;
                $set;
                self
            }
        )* }

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
}

/// Declares the kernel's numbers with their C names. For the unit tests of the crate, which compare them with the C
/// header, there is also a list of all.
///
/// ```
/// netlink_batch::numbers! {
///     const ALL;
///     NLM_F_REQUEST: u16 = 1;
///     /// Of an answer in several messages.
///     NLM_F_MULTI: u16 = 2;
/// }
///
/// assert_eq!(NLM_F_REQUEST | NLM_F_MULTI, 3);
/// ```
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
