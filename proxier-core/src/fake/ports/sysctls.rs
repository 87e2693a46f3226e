//! Values below `/proc/sys`.

use std::collections::BTreeMap;

use super::gate::Gate;
use crate::fake::control::Call;
use crate::fake::shared::Shared;
use crate::kernel::check_sysctl;
use crate::ports::{PortError, PortErrorKind, Sysctls};

pub(super) struct FakeSysctlsPort {
    pub(super) gate: Gate,
    pub(super) values: Shared<BTreeMap<String, String>>,
}

fn no_sysctl(path: &str) -> PortError {
    PortError::new(PortErrorKind::NotFound, format!("{path}: this kernel does not have it"))
}

impl Sysctls for FakeSysctlsPort {
    fn get(&mut self, path: &str) -> Result<String, PortError> {
        self.gate.call(Call::SysctlsGet, None, || {
            check_sysctl(path)?;
            self.values.lock().get(path).cloned().ok_or_else(|| no_sysctl(path))
        })
    }

    fn can_set(&mut self, path: &str) -> bool {
        self.values.lock().contains_key(path)
    }

    fn set(&mut self, path: &str, value: &str) -> Result<(), PortError> {
        self.gate.call(Call::SysctlsSet, None, || {
            check_sysctl(path)?;
            let mut values = self.values.lock();
            let Some(place) = values.get_mut(path) else { return Err(no_sysctl(path)) };
            let value = value.trim();
            if value.parse::<i64>().is_err() {
                return Err(PortError::new(PortErrorKind::Invalid, format!("{path}: {value:?} is not a number")));
            }
            value.clone_into(place);
            Ok(())
        })
    }
}
