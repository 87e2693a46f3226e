//! A status-page client's query: which Services, and how many.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageQuery {
    /// Lower-case text that a Service's name, or a Frontend's address and port, must contain; empty: all Services.
    pub(super) filter: String,
    /// Number of matching Services to skip.
    pub(super) offset: usize,
    /// Number of Services to show, 1 to [`PageQuery::MOST`].
    pub(super) limit: usize,
}

impl PageQuery {
    /// Number of Services in an answer to a query that names none.
    const USUAL: usize = 50;
    /// Largest number of Services in one answer.
    const MOST: usize = 200;
    /// Longest filter in characters. Names of Services and addresses are shorter.
    const FILTER: usize = 128;

    /// Parses `filter=web&offset=50&limit=50`. Impossible values and unknown names are ignored.
    pub(super) fn read(query: &str) -> Self {
        let mut wanted = PageQuery { filter: String::new(), offset: 0, limit: Self::USUAL };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "filter" => wanted.filter = value.trim().to_lowercase().chars().take(Self::FILTER).collect(),
                "offset" => wanted.offset = value.parse().unwrap_or(0),
                "limit" => wanted.limit = value.parse().unwrap_or(Self::USUAL).clamp(1, Self::MOST),
                _ => {}
            }
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_any_kind_are_read() {
        let wanted = |filter: &str, offset, limit| PageQuery { filter: filter.to_owned(), offset, limit };
        for (query, expected) in [
            ("", wanted("", 0, 50)),
            ("filter=Shop%2FWeb&offset=50&limit=10", wanted("shop/web", 50, 10)),
            ("filter=a+b%20c", wanted("a b c", 0, 50)),
            ("limit=0", wanted("", 0, 1)),
            ("limit=100000&offset=-1", wanted("", 0, 200)),
            ("filter=%zz%4&limit=x&other=1&nothing", wanted("%zz%4", 0, 50)),
            ("filter=%ff%c3%a4", wanted("\u{fffd}ä", 0, 50)),
        ] {
            assert_eq!(PageQuery::read(query), expected, "{query}");
        }
        assert_eq!(PageQuery::read(&format!("filter={}", "x".repeat(1000))).filter.len(), PageQuery::FILTER);
    }
}
