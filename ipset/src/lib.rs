//! Program Linux ipset over netlink, without processes or C libraries
