//! Sets of a few named values.

/// Defines a set of named values with the operations that it needs. For public types, `bitflags` would add sixty items
/// per type.
macro_rules! flags {
    ($(#[$meta:meta])* pub struct $name:ident($bits:ty) { $($(#[$doc:meta])* const $flag:ident = $value:expr;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name($bits);

        impl $name {
            $($(#[$doc])* pub const $flag: Self = Self($value);)*

            /// The empty set.
            pub const fn empty() -> Self {
                Self(0)
            }

            /// The set of all named values.
            pub const fn all() -> Self {
                Self($($value)|*)
            }

            /// Whether this set contains all of `other`.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether this set contains any of `other`.
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// This set without `other`.
            #[must_use]
            pub const fn difference(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::ops::BitAnd for $name {
            type Output = Self;

            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }
    };
}

pub(crate) use flags;
