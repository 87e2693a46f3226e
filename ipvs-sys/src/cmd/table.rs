//! The commands, one entry each, by their numbers' groups.

use netlink_batch::{Attrs, Encoder, Errno, WireError};

use super::{Command, Failure, Fields, Query};
use crate::attr::{CmdAttr, InfoAttr};
use crate::daemon::DaemonAttr;
use crate::dest::DestAttr;
use crate::service::SvcAttr;

/// Declares a command: its type, number, name in C, fields with the function that writes each, and error numbers.
macro_rules! command {
    (
        $(#[$doc:meta])*
        $name:ident<$($of:ident),+> = $number:literal, $in_c:literal {
            $($(#[$of_field:meta])* $field:ident: $type:ty => $write:ident,)*
        } $(, [$($errno:ident => $failure:ident),* $(,)?])?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<$($of),+> {
            $($(#[$of_field])* pub $field: $type,)*
        }

        impl<$($of: Fields),+> Command for $name<$($of),+> {
            const NUMBER: u8 = $number;
            const NAME: &'static str = $in_c;
            const ERRORS: &'static [(Errno, Failure)] = &[$($((Errno::$errno, Failure::$failure)),*)?];

            fn encode(&self, out: &mut Encoder) {
                $($write(out, &self.$field);)*
            }
        }
    };
    ($(#[$doc:meta])* $name:ident = $number:literal, $in_c:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Command for $name {
            const NUMBER: u8 = $number;
            const NAME: &'static str = $in_c;

            fn encode(&self, _out: &mut Encoder) {}
        }
    };
}

fn service(out: &mut Encoder, service: &impl Fields) {
    out.nest(CmdAttr::SERVICE, |out| service.put(out));
}

#[expect(clippy::ref_option, reason = "the table passes each field by reference")]
fn any_service(out: &mut Encoder, key: &Option<impl Fields>) {
    if let Some(key) = key {
        service(out, key);
    }
}

fn dest(out: &mut Encoder, dest: &impl Fields) {
    out.nest(CmdAttr::DEST, |out| dest.put(out));
}

fn daemon(out: &mut Encoder, daemon: &impl Fields) {
    out.nest(CmdAttr::DAEMON, |out| daemon.put(out));
}

fn config(out: &mut Encoder, config: &impl Fields) {
    config.put(out);
}

command! {
    /// Adds a virtual server. Takes all attributes except the statistics.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_set_cmd`, `ip_vs_add_service`.
    NewService<S> = 1, "IPVS_CMD_NEW_SERVICE" {
        /// The virtual server: its key and all settings.
        service: S => service,
    }, [
        // the key is taken
        EEXIST => VirtualServerExists,
        // the scheduler's or persistence engine's module is missing and could not be loaded
        ENOENT => ModuleMissing,
        // an attribute is missing or invalid, such as an IPv6 prefix length outside 1..=128
        EINVAL => Invalid,
        // neither IPv4 nor IPv6, or this kernel's IPVS is built without IPv6
        EAFNOSUPPORT => FamilyUnsupported,
        ENOMEM => OutOfMemory,
    ]
}

command! {
    /// Changes a virtual server. Takes all attributes except the statistics. Flags outside the mask are unchanged.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_edit_service`.
    SetService<S> = 2, "IPVS_CMD_SET_SERVICE" {
        /// The virtual server: its key and all settings.
        service: S => service,
    }, [
        ESRCH => VirtualServerMissing,
        // the scheduler's or persistence engine's module is missing and could not be loaded
        ENOENT => ModuleMissing,
        EINVAL => Invalid,
        EAFNOSUPPORT => FamilyUnsupported,
        ENOMEM => OutOfMemory,
    ]
}

command! {
    /// Deletes a virtual server with its real servers. Takes only the key. Its connections lose their real servers.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_del_service`.
    DelService<S> = 3, "IPVS_CMD_DEL_SERVICE" {
        /// The virtual server: its key.
        service: S => service,
    }, [
        ESRCH => VirtualServerMissing,
        EINVAL => Invalid,
        EAFNOSUPPORT => FamilyUnsupported,
    ]
}

command! {
    /// Reads one virtual server by its key, or lists all of them as a dump without attributes.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_get_cmd`, `ip_vs_genl_dump_services`.
    GetService<S> = 4, "IPVS_CMD_GET_SERVICE" {
        /// The virtual server's key; `None` for all.
        service: Option<S> => any_service,
    }, [
        ESRCH => VirtualServerMissing,
        EINVAL => Invalid,
        EAFNOSUPPORT => FamilyUnsupported,
    ]
}

command! {
    /// Adds a real server to a virtual server. The kernel keeps deleted real servers for two minutes. It searches that list
    /// at every addition, and restores a match with its counters.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_add_dest`, `ip_vs_new_dest`.
    NewDest<S, D> = 5, "IPVS_CMD_NEW_DEST" {
        /// The virtual server: its key.
        service: S => service,
        /// The real server: its key and all settings.
        dest: D => dest,
    }, [
        ESRCH => VirtualServerMissing,
        EEXIST => RealServerExists,
        // weight above 2^31-1, or lower threshold above the upper
        ERANGE => OutOfRange,
        // the address is neither unicast nor local in this namespace (without a route it is not local: bring `lo` up
        // first); GUE has no port; the family differs from the virtual server's without a tunnel
        EINVAL => Invalid,
        EAFNOSUPPORT => FamilyUnsupported,
        ENOMEM => OutOfMemory,
    ]
}

command! {
    /// Changes a real server. Takes all attributes. Connections continue.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_edit_dest`.
    SetDest<S, D> = 6, "IPVS_CMD_SET_DEST" {
        /// The virtual server: its key.
        service: S => service,
        /// The real server: its key and all settings.
        dest: D => dest,
    }, [
        ESRCH => VirtualServerMissing,
        ENOENT => RealServerMissing,
        ERANGE => OutOfRange,
        EINVAL => Invalid,
        EAFNOSUPPORT => FamilyUnsupported,
    ]
}

command! {
    /// Deletes a real server. Takes only the keys. `net.ipv4.vs.expire_nodest_conn` decides what happens to its
    /// connections.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_del_dest`.
    DelDest<S, D> = 7, "IPVS_CMD_DEL_DEST" {
        /// The virtual server: its key.
        service: S => service,
        /// The real server: its key.
        dest: D => dest,
    }, [
        ESRCH => VirtualServerMissing,
        ENOENT => RealServerMissing,
        EINVAL => Invalid,
        EAFNOSUPPORT => FamilyUnsupported,
    ]
}

command! {
    /// Lists the real servers of a virtual server. Only works as a dump. The kernel returns an empty list if the virtual
    /// server does not exist.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_dump_dests`.
    GetDest<S> = 8, "IPVS_CMD_GET_DEST" {
        /// The virtual server: its key.
        service: S => service,
    }
}

command! {
    /// Starts the synchronisation daemon in one of its two states.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_new_daemon`, `start_sync_thread`.
    NewDaemon<A> = 9, "IPVS_CMD_NEW_DAEMON" {
        /// The daemon: its state, and every setting that the kernel should not choose.
        daemon: A => daemon,
    }, [
        EEXIST => DaemonRunning,
        ENODEV => InterfaceMissing,
        // an attribute is missing, the group is not a multicast address, or a virtual server has real servers of
        // another family
        EINVAL => Invalid,
        EAFNOSUPPORT => FamilyUnsupported,
        ENOMEM => OutOfMemory,
    ]
}

command! {
    /// Stops the synchronisation daemon in the given state.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_del_daemon`, `stop_sync_thread`.
    DelDaemon<A> = 10, "IPVS_CMD_DEL_DAEMON" {
        /// The daemon: its state.
        daemon: A => daemon,
    }, [ESRCH => DaemonNotRunning, EINVAL => Invalid]
}

command! {
    /// Lists the running synchronisation daemons. Only works as a dump.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_dump_daemons`.
    GetDaemon = 11, "IPVS_CMD_GET_DAEMON"
}

command! {
    /// Sets the timeouts. A timeout that is missing or 0 is left unchanged.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_set_config`.
    SetConfig<C> = 12, "IPVS_CMD_SET_CONFIG" {
        /// The timeouts to set, as [`CmdAttr`](crate::CmdAttr)s.
        config: C => config,
    }, [
        // a timeout is larger than the kernel's clock can represent
        EINVAL => Invalid,
    ]
}

command! {
    /// Reads the timeouts.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_get_cmd`.
    GetConfig = 13, "IPVS_CMD_GET_CONFIG"
}

command! {
    /// Reads the version and the table size. The answer arrives as `IPVS_CMD_SET_INFO`.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_genl_get_cmd`.
    GetInfo = 15, "IPVS_CMD_GET_INFO"
}

command! {
    /// Resets the counters of one virtual server and its real servers, or of all of them if no key is given.
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_zero_service`, `ip_vs_zero_all`.
    Zero<S> = 16, "IPVS_CMD_ZERO" {
        /// The virtual server's key; `None` for all.
        service: Option<S> => any_service,
    }, [
        ESRCH => VirtualServerMissing,
        EINVAL => Invalid,
        EAFNOSUPPORT => FamilyUnsupported,
    ]
}

command! {
    /// Deletes every virtual server of the network namespace and so cuts all connections. Adding the same real servers
    /// again within two minutes is twenty times slower; see [`NewDest`](super::NewDest).
    ///
    /// Kernel: net/netfilter/ipvs/ip_vs_ctl.c, `ip_vs_flush`.
    Flush = 17, "IPVS_CMD_FLUSH"
}

/// Declares the answer of a command: a nest of this name at the top level, or the top level itself.
macro_rules! answer {
    ($name:ident$(<$of:ident>)?: $attribute:ident in $nest:ident, $in_c:literal) => {
        impl$(<$of: Fields>)? Query for $name$(<$of>)? {
            type Reply<'a> = Attrs<'a, $attribute<'a>>;

            fn decode(attributes: &[u8]) -> Result<Self::Reply<'_>, WireError> {
                for attribute in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
                    if let CmdAttr::$nest(found) = attribute? {
                        return Ok(found);
                    }
                }
                Err(WireError::Missing { attribute: $in_c.to_owned() })
            }
        }
    };
    ($name:ident: $attribute:ident) => {
        impl Query for $name {
            type Reply<'a> = Attrs<'a, $attribute<'a>>;

            fn decode(attributes: &[u8]) -> Result<Self::Reply<'_>, WireError> {
                Ok(Attrs::new(attributes))
            }
        }
    };
}

answer!(GetService<S>: SvcAttr in Service, "IPVS_CMD_ATTR_SERVICE");
answer!(GetDest<S>: DestAttr in Dest, "IPVS_CMD_ATTR_DEST");
answer!(GetDaemon: DaemonAttr in Daemon, "IPVS_CMD_ATTR_DAEMON");
answer!(GetConfig: CmdAttr);
answer!(GetInfo: InfoAttr);
