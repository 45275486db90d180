package network

import (
	"encoding/binary"
	"net/netip"
)

// Offsets and flags of IPv4 and TCP.
const (
	protocolTCP = 6
	flagSYN     = 0x02
	flagRST     = 0x04
	flagACK     = 0x10
	headerSize  = 20 // bytes in a header of IPv4, and in a header of TCP without options
)

// packet is an IPv4 packet.
type packet []byte

// isValid reports whether the packet has a complete header of IPv4.
func (p packet) isValid() bool { return len(p) >= headerSize && p[0]>>4 == 4 && len(p) >= p.header() }

// header returns the length of the IPv4 header in bytes.
func (p packet) header() int { return int(p[0]&15) * 4 }

func (p packet) source() [4]byte { return [4]byte(p[12:16]) }
func (p packet) target() [4]byte { return [4]byte(p[16:20]) }

// segment returns the TCP segment in the packet, or nil.
func (p packet) segment() []byte {
	if p[9] != protocolTCP || len(p) < p.header()+headerSize {
		return nil
	}
	return p[p.header():]
}

// flow identifies a TCP connection by its two endpoints, regardless of the direction of a packet.
type flow struct{ low, high netip.AddrPort }

// flow returns the connection of a packet with a TCP segment.
func (p packet) flow() flow {
	segment := p.segment()
	from := netip.AddrPortFrom(netip.AddrFrom4(p.source()), binary.BigEndian.Uint16(segment[0:]))
	to := netip.AddrPortFrom(netip.AddrFrom4(p.target()), binary.BigEndian.Uint16(segment[2:]))
	if to.Compare(from) < 0 {
		from, to = to, from
	}
	return flow{from, to}
}

// opens reports whether the packet is a SYN without ACK, the first packet of a connection.
func (p packet) opens() bool { return p.segment()[13]&(flagSYN|flagACK) == flagSYN }

// isReset reports whether the packet ends a connection with a reset.
func (p packet) isReset() bool { return p.segment()[13]&flagRST != 0 }

// resets returns two RST packets for the connection of a packet: one to its target and one to its source. Their
// sequence numbers follow from the packet, so that the receivers accept them.
func (p packet) resets() (forTarget, forSource packet) {
	segment := p.segment()
	sequence, acknowledged := binary.BigEndian.Uint32(segment[4:]), binary.BigEndian.Uint32(segment[8:])
	forTarget = reset(p.source(), p.target(), [2]byte(segment[0:2]), [2]byte(segment[2:4]), sequence)
	forSource = reset(p.target(), p.source(), [2]byte(segment[2:4]), [2]byte(segment[0:2]), acknowledged)
	return forTarget, forSource
}

func reset(from, to [4]byte, fromPort, toPort [2]byte, sequence uint32) packet {
	p := make(packet, 2*headerSize)
	p[0], p[8], p[9] = 4<<4|headerSize/4, 64, protocolTCP
	binary.BigEndian.PutUint16(p[2:], 2*headerSize)
	copy(p[12:], from[:])
	copy(p[16:], to[:])
	binary.BigEndian.PutUint16(p[10:], checksum(p[:headerSize], 0))
	segment := p[headerSize:]
	copy(segment[0:], fromPort[:])
	copy(segment[2:], toPort[:])
	binary.BigEndian.PutUint32(segment[4:], sequence)
	segment[12], segment[13] = headerSize/4<<4, flagRST
	// The checksum of TCP covers a pseudo-header with the addresses, the protocol and the length.
	binary.BigEndian.PutUint16(segment[16:], checksum(p[12:], protocolTCP+headerSize))
	return p
}

// checksum returns the Internet checksum (RFC 1071) of data of an even length, beginning with the partial sum.
func checksum(data []byte, sum uint32) uint16 {
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
