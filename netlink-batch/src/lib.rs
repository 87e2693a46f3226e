//! A thin, fast layer over netlink sockets: typed attributes, batches, complete dumps, extended errors
