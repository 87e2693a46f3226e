/*
 * The bar for the `nftables` crate: a minimal program that adds N elements to the map `inet bench filled` (address, protocol, port to
 * address, port) in one transaction, and nothing else. It sends the same bytes as the crate; `--print` writes them to standard
 * output instead, so that this can be checked.
 *
 * Prints the nanoseconds from before socket() to the acknowledgement.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define MESSAGE_BYTES (56 << 10)

static char *out;
static size_t used, last;
static uint32_t sequence;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void attr(uint16_t type, const void *data, uint16_t length)
{
	struct nlattr *a = (struct nlattr *)(out + used);
	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + length;
	memcpy(out + used + NLA_HDRLEN, data, length);
	memset(out + used + a->nla_len, 0, NLA_ALIGN(a->nla_len) - a->nla_len);
	used += NLA_ALIGN(a->nla_len);
}

static size_t nest(uint16_t type)
{
	size_t at = used;
	attr(type | NLA_F_NESTED, "", 0);
	return at;
}

static void nest_end(size_t at) { ((struct nlattr *)(out + at))->nla_len = used - at; }

static size_t begin(uint16_t type, uint16_t flags, uint8_t family, uint16_t resource)
{
	struct nlmsghdr *h = (struct nlmsghdr *)(out + used);
	struct nfgenmsg *g = (struct nfgenmsg *)(h + 1);
	size_t at = used;
	memset(h, 0, sizeof(*h) + sizeof(*g));
	h->nlmsg_type = type;
	h->nlmsg_flags = NLM_F_REQUEST | flags;
	h->nlmsg_seq = ++sequence;
	g->nfgen_family = family;
	g->res_id = htons(resource);
	used += NLMSG_HDRLEN + NLMSG_ALIGN(sizeof(*g));
	return at;
}

static void end(size_t at) { ((struct nlmsghdr *)(out + at))->nlmsg_len = used - at; }

static void program(uint32_t count)
{
	end(begin(NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES));
	for (uint32_t n = 0; n < count;) {
		last = begin(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWSETELEM, NLM_F_CREATE, NFPROTO_INET, 0);
		attr(NFTA_SET_ELEM_LIST_TABLE, "bench", 6);
		attr(NFTA_SET_ELEM_LIST_SET, "filled", 7);
		size_t list = nest(NFTA_SET_ELEM_LIST_ELEMENTS);
		for (; n < count && used - list < MESSAGE_BYTES; n++) {
			uint8_t key[12] = { 0 }, data[8] = { 0 };
			uint32_t from = htonl(0x0a000000 + n), to = htonl(0x0b000000 + n);
			memcpy(key, &from, 4);
			key[4] = IPPROTO_TCP;
			memcpy(key + 8, "\0\x50", 2);
			memcpy(data, &to, 4);
			memcpy(data + 4, "\x1f\x90", 2);
			size_t element = nest(NFTA_LIST_ELEM), part = nest(NFTA_SET_ELEM_KEY);
			attr(NFTA_DATA_VALUE, key, 12);
			nest_end(part);
			part = nest(NFTA_SET_ELEM_DATA);
			attr(NFTA_DATA_VALUE, data, 8);
			nest_end(part);
			nest_end(element);
		}
		nest_end(list);
		end(last);
	}
	end(begin(NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES));
	((struct nlmsghdr *)(out + last))->nlmsg_flags |= NLM_F_ACK;
}

int main(int argc, char **argv)
{
	static char in[65536];
	struct sockaddr_nl sa = { .nl_family = AF_NETLINK };
	struct timespec a, b;
	int room, fd, done = 0;
	if (argc < 2) {
		fprintf(stderr, "usage: %s ELEMENTS [--print]\n", argv[0]);
		return 2;
	}
	uint32_t count = atoi(argv[1]);
	clock_gettime(CLOCK_MONOTONIC, &a);
	out = malloc((size_t)count * 44 + 65536);
	if (!out)
		fail("malloc");
	program(count);
	if (argc > 2) {
		fwrite(out, 1, used, stdout);
		return 0;
	}
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)))
		fail("socket");
	room = used + 32;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)))
		fail("SO_SNDBUFFORCE");
	if (send(fd, out, used, 0) != (ssize_t)used)
		fail("send");
	while (!done) {
		ssize_t n = recv(fd, in, sizeof(in), 0);
		if (n < 0)
			fail("recv");
		for (struct nlmsghdr *h = (struct nlmsghdr *)in; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			struct nlmsgerr *e = NLMSG_DATA(h);
			if (h->nlmsg_type != NLMSG_ERROR)
				continue;
			if (e->error) {
				errno = -e->error;
				fail("kernel");
			}
			done |= h->nlmsg_seq == sequence - 1;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("%lld\n", (b.tv_sec - a.tv_sec) * 1000000000LL + (b.tv_nsec - a.tv_nsec));
	return 0;
}
