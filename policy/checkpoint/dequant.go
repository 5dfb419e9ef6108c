package checkpoint

import (
	"encoding/binary"
	"unsafe"
)

// The decoders turn whole blocks of src into len(dst) float32 values. Formulas and the order of operations are those of ggml's
// dequantize_row_* (and of the Python package gguf), in float32 with each product rounded before the sum, so the results
// are equal to the last bit. d and m are half-precision; q is the unsigned integer as stored.

func f16At(b []byte) float32 { return FromFloat16(binary.LittleEndian.Uint16(b)) }

func decodeF32(dst []float32, src []byte) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 4*len(dst)), src)
}

func decodeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = FromFloat16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func decodeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = FromBFloat16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// Q4_0: d, 16 bytes of nibbles (low ones first): x = d·(q-8).
func decodeQ4_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		d, qs := f16At(src), src[2:18]
		for j, q := range qs {
			dst[j] = d * float32(int(q&15)-8)
			dst[j+16] = d * float32(int(q>>4)-8)
		}
	}
}

// Q4_1: d, m, 16 bytes of nibbles (low ones first): x = d·q + m.
func decodeQ4_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[20:] {
		d, m, qs := f16At(src), f16At(src[2:]), src[4:20]
		lo, hi := dst[:16], dst[16:32]
		for j, q := range qs {
			lo[j] = float32(d*float32(q&15)) + m
			hi[j] = float32(d*float32(q>>4)) + m
		}
	}
}

// Q5_0: d, 32 fifth bits, 16 bytes of nibbles: x = d·(q-16).
func decodeQ5_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[22:] {
		d, high, qs := f16At(src), binary.LittleEndian.Uint32(src[2:]), src[6:22]
		for j, q := range qs {
			dst[j] = d * float32(int(uint32(q&15)|high>>j&1<<4)-16)
			dst[j+16] = d * float32(int(uint32(q>>4)|high>>(j+16)&1<<4)-16)
		}
	}
}

// Q5_1: d, m, 32 fifth bits, 16 bytes of nibbles: x = d·q + m.
func decodeQ5_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[24:] {
		d, m, high, qs := f16At(src), f16At(src[2:]), binary.LittleEndian.Uint32(src[4:]), src[8:24]
		for j, q := range qs {
			dst[j] = float32(d*float32(uint32(q&15)|high>>j&1<<4)) + m
			dst[j+16] = float32(d*float32(uint32(q>>4)|high>>(j+16)&1<<4)) + m
		}
	}
}

// Q8_0: d, 32 signed bytes: x = d·q.
func decodeQ8_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[34:] {
		d, out := f16At(src), dst[:32]
		for j, q := range src[2:34] {
			out[j] = d * float32(int8(q))
		}
	}
}

// Q2_K: 16 bytes of (4-bit scale, 4-bit minimum), 64 bytes of 2-bit q, d, dmin. Sub-block s of 16 values:
// x = (d·scale)·q - dmin·minimum. Each half of 128 takes its q from 32 bytes, two bits at a time.
func decodeQ2K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[84:] {
		scales, qs, d, dmin := src[:16], src[16:80], f16At(src[80:]), f16At(src[82:])
		for i := range 256 {
			sc := scales[i/16]
			q := qs[i/128*32+i%32] >> (i % 128 / 32 * 2) & 3
			dst[i] = float32(d*float32(sc&15)*float32(q)) - float32(dmin*float32(sc>>4))
		}
	}
}

// Q3_K: 32 bytes of third bits, 64 bytes of 2-bit q, 12 bytes of sixteen 6-bit scales, d. x = d·(scale-32)·(q - 4 where the
// third bit is not set).
func decodeQ3K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[110:] {
		high, qs, packed, d := src[:32], src[32:96], src[96:108], f16At(src[108:])
		var scales [16]float32
		for s := range scales {
			// Lower four bits: low nibbles of bytes 0..7, then their high nibbles. Upper two: bytes 8..11, two bits at a time.
			sc := packed[s%8] >> (s / 8 * 4) & 15
			sc |= packed[8+s%4] >> (s / 4 * 2) & 3 << 4
			scales[s] = d * float32(int(sc)-32)
		}
		for i := range 256 {
			q := int(qs[i/128*32+i%32] >> (i % 128 / 32 * 2) & 3)
			if high[i%32]>>(i/32)&1 == 0 {
				q -= 4
			}
			dst[i] = scales[i/16] * float32(q)
		}
	}
}

// scaleMinK unpacks the 6-bit scale and minimum of sub-block j (0 to 7) of Q4_K and Q5_K from their 12 bytes.
func scaleMinK(packed []byte, j int) (scale, minimum float32) {
	if j < 4 {
		return float32(packed[j] & 63), float32(packed[j+4] & 63)
	}
	return float32(packed[j+4]&15 | packed[j-4]>>6<<4), float32(packed[j+4]>>4 | packed[j]>>6<<4)
}

// Q4_K: d, dmin, 12 bytes of eight 6-bit scales and minima, 128 bytes of nibbles. Sub-blocks of 32, two to 32 bytes of nibbles:
// x = (d·scale)·q - dmin·minimum.
func decodeQ4K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[144:] {
		d, dmin, packed, qs := f16At(src), f16At(src[2:]), src[4:16], src[16:144]
		for j := range 8 {
			sc, mn := scaleMinK(packed, j)
			dl, ml := d*sc, dmin*mn
			out, bits, shift := dst[32*j:32*j+32], qs[j/2*32:j/2*32+32], j%2*4
			for i, q := range bits {
				out[i] = float32(dl*float32(q>>shift&15)) - ml
			}
		}
	}
}

// Q5_K: as Q4_K, with a fifth bit: bit j of byte i of qh belongs to value i of sub-block j.
func decodeQ5K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[176:] {
		d, dmin, packed, qh, qs := f16At(src), f16At(src[2:]), src[4:16], src[16:48], src[48:176]
		for j := range 8 {
			sc, mn := scaleMinK(packed, j)
			dl, ml := d*sc, dmin*mn
			out, bits, shift := dst[32*j:32*j+32], qs[j/2*32:j/2*32+32], j%2*4
			for i, q := range bits {
				out[i] = float32(dl*float32(q>>shift&15|qh[i]>>j&1<<4)) - ml
			}
		}
	}
}

// Q6_K: 128 bytes of low nibbles, 64 bytes of upper 2 bits, 16 signed scales, d. Each half of 128: values 0..31 and 32..63 have
// the low nibbles of its 64 bytes, 64..95 and 96..127 the high ones. x = (d·scale)·(q-32).
func decodeQ6K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[210:] {
		ql, qh, scales, d := src[:128], src[128:192], src[192:208], f16At(src[208:])
		for h := range 2 {
			for g := range 4 {
				for i := range 32 {
					low := ql[64*h+g%2*32+i] >> (g / 2 * 4) & 15
					up := qh[32*h+i] >> (2 * g) & 3
					dst[128*h+32*g+i] = d * float32(int8(scales[8*h+2*g+i/16])) * float32(int(low|up<<4)-32)
				}
			}
		}
	}
}
