//! Requirements of a caller's own: modules, options of the configuration, files, kernel versions, links and expressions of nf_tables.

use std::borrow::Cow;

use crate::active::Capability;
use crate::error::{Error, ErrorKind, shown};
use crate::modules::ModuleName;
use crate::requirement::{Need, Provider, Requirement};
use crate::table::{EXPRESSIONS, LINK_KINDS, Since};

impl Requirement {
    /// A module, by the name that `modprobe` takes. Required; the module's name is the row's.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModuleName`].
    pub fn module(name: &str, why: impl Into<Cow<'static, str>>) -> Result<Self, Error> {
        Ok(Self::own(name, why, Provider { module: Some(ModuleName::new(name)?), ..Provider::NONE }))
    }

    /// An option of the kernel's configuration that has to be `y` or `m`, with or without `CONFIG_`. The row is named
    /// `CONFIG_<symbol>`. Of `m`, no file is looked for: name the module with [`Requirement::module`] and [`Requirement::symbol`] for that.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequirement`] unless it is 1 to 128 letters, digits or `_`.
    pub fn option(symbol: &str, why: impl Into<Cow<'static, str>>) -> Result<Self, Error> {
        let symbol = checked_symbol(symbol)?;
        let name = format!("CONFIG_{symbol}");
        Ok(Self::own(&name, why, Provider { symbol: Some(symbol), ..Provider::NONE }))
    }

    /// A file of any type, below the probe's root. The row is named by its path. Files below `/proc`, `/sys` and `/dev` are not known for a
    /// kernel that does not run.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequirement`] unless the path is absolute, without `..` and control characters.
    pub fn file(path: &str, why: impl Into<Cow<'static, str>>) -> Result<Self, Error> {
        let path = checked_path(path)?;
        Ok(Self::own(&path, why, Provider { files: vec![path.clone()], ..Provider::NONE }))
    }

    /// A kernel of this version or later, named `Linux <major>.<minor>`. For what has no module, option or file of its own: vendors backport.
    pub fn kernel(major: u64, minor: u64, why: impl Into<Cow<'static, str>>) -> Self {
        let provider = Provider { since: Some((major, minor)), ..Provider::NONE };
        Self::own(&format!("Linux {major}.{minor}"), why, provider)
    }

    /// An expression of nf_tables by its name in the kernel (`flow_offload`, `fib`, `synproxy`), named `expression <name>`. Its capability is
    /// [`Capability::NftExpression`]. One that this crate does not know is taken to be in module `nft_<name>`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModuleName`] for a name that no module can have.
    pub fn nft_expression(name: &str, why: impl Into<Cow<'static, str>>) -> Result<Self, Error> {
        let own = Self::of_table(EXPRESSIONS, name, &format!("nft_{name}"), why)?;
        Ok(own.named(&format!("expression {name}")).asks(Capability::NftExpression(name.to_owned())))
    }

    /// A kind of link (`wireguard`, `vxlan`, `veth`), named `link <kind>`. Its capability is [`Capability::LinkKind`]. One that this crate
    /// does not know is taken to be in the module of that name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModuleName`] for a name that no module can have.
    pub fn link_kind(kind: &str, why: impl Into<Cow<'static, str>>) -> Result<Self, Error> {
        let own = Self::of_table(LINK_KINDS, kind, kind, why)?;
        Ok(own.named(&format!("link {kind}")).asks(Capability::LinkKind(kind.to_owned())))
    }

    /// The same under another name in reports. It replaces a row of the profile that has this name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The same, only wanted: without it the verdict may still be yes.
    #[must_use]
    pub fn wanted(mut self) -> Self {
        self.need = Need::Wanted;
        self
    }

    /// The same with the option of the configuration that builds the module, with or without `CONFIG_`.
    ///
    /// # Errors
    /// As for [`Requirement::option`].
    pub fn symbol(mut self, symbol: &str) -> Result<Self, Error> {
        let symbol = checked_symbol(symbol)?;
        self.latest().symbol = Some(symbol);
        Ok(self)
    }

    /// The same as a switch inside its module: `part` is the option that has to be `y`, as `IP_VS_IPV6` is for module `ip_vs`, whose own
    /// option [`Requirement::symbol`] gives first.
    ///
    /// # Errors
    /// As for [`Requirement::option`].
    pub fn switch(mut self, part: &str) -> Result<Self, Error> {
        let part = checked_symbol(part)?;
        let provider = self.latest();
        provider.part_of = Some(provider.symbol.replace(part).unwrap_or_default());
        Ok(self)
    }

    /// The same with the first upstream kernel that has it. It explains what is missing, and decides only for [`Requirement::kernel`].
    #[must_use]
    pub fn since(mut self, major: u64, minor: u64) -> Self {
        self.latest().since = Some((major, minor));
        self
    }

    /// The same with the first upstream kernel that no longer has it, as [`Requirement::since`].
    #[must_use]
    pub fn until(mut self, major: u64, minor: u64) -> Self {
        self.latest().until = Some((major, minor));
        self
    }

    /// The same with a file that only this part of the kernel makes: where it is there, the part works.
    ///
    /// # Errors
    /// As for [`Requirement::file`].
    pub fn shown_by(mut self, path: &str) -> Result<Self, Error> {
        let path = checked_path(path)?;
        self.latest().files.push(path);
        Ok(self)
    }

    /// The same with a question for an [`ActiveProbe`](crate::ActiveProbe).
    #[must_use]
    pub fn asks(mut self, capability: Capability) -> Self {
        self.capability = Some(capability);
        self
    }

    /// The same with the other's ways to meet it as well: one of all is enough.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.providers.extend(other.providers);
        self.capability = self.capability.or(other.capability);
        self
    }

    fn own(name: &str, why: impl Into<Cow<'static, str>>, provider: Provider) -> Self {
        Self {
            name: name.to_owned(),
            why: why.into(),
            need: Need::Required,
            backend: None,
            providers: vec![provider],
            capability: None,
        }
    }

    fn of_table(
        table: &[(&str, &str, &str, Since)],
        name: &str,
        module: &str,
        why: impl Into<Cow<'static, str>>,
    ) -> Result<Self, Error> {
        let Some((_, module, symbol, since)) = table.iter().find(|(known, ..)| *known == name) else {
            return Self::module(module, why);
        };
        let own = Self::module(module, why)?.symbol(symbol)?;
        Ok(match since {
            Some((major, minor)) => own.since(*major, *minor),
            None => own,
        })
    }

    /// The way to meet it that was named last.
    fn latest(&mut self) -> &mut Provider {
        if self.providers.is_empty() {
            self.providers.push(Provider::NONE);
        }
        let last = self.providers.len().saturating_sub(1);
        #[expect(clippy::indexing_slicing, reason = "the last of at least one")]
        &mut self.providers[last]
    }
}

fn checked_symbol(symbol: &str) -> Result<String, Error> {
    let plain = symbol.strip_prefix("CONFIG_").unwrap_or(symbol);
    if (1..=128).contains(&plain.len()) && plain.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Ok(plain.to_owned());
    }
    let says = "expected 1 to 128 letters, digits or _, such as \"NF_FLOW_TABLE\"";
    Err(Error::new(ErrorKind::InvalidRequirement, format!("option \"{}\"; {says}", shown(symbol))))
}

fn checked_path(path: &str) -> Result<String, Error> {
    if path.len() > 1 && path.starts_with('/') && !path.split('/').any(|part| part == "..") && !has_controls(path) {
        return Ok(path.to_owned());
    }
    let says = "expected an absolute path without .., such as \"/dev/net/tun\"";
    Err(Error::new(ErrorKind::InvalidRequirement, format!("file \"{}\"; {says}", shown(path))))
}

pub(crate) fn has_controls(text: &str) -> bool {
    text.chars().any(char::is_control)
}
