package checkpoint

import (
	"fmt"
	"math"
)

// DType is how the elements of a tensor are stored.
type DType uint8

// Stored types. The quantized ones (GGUF only) come in blocks along the last axis.
const (
	Invalid DType = iota
	F32           // IEEE 754 single
	F16           // IEEE 754 half
	BF16          // the upper half of a single
	F64
	I64
	I32
	I16
	I8
	U64
	U32
	U16
	U8
	Bool
	F8E4M3
	F8E5M2
	Q4_0 // ggml: blocks of 32, scale
	Q4_1 // ggml: blocks of 32, scale and minimum
	Q5_0
	Q5_1
	Q8_0
	Q2K // ggml: super-blocks of 256
	Q3K
	Q4K
	Q5K
	Q6K
)

// dtypeInfo says how a type is spelled in messages and safetensors headers, and how large its blocks are.
type dtypeInfo struct {
	name          string
	block         int // elements of a block
	bytes         int // bytes of a block
	inSafetensors bool
	decode        func(dst []float32, src []byte) // whole blocks to float32; nil where the type cannot be a weight
}

var dtypes = [...]dtypeInfo{
	Invalid: {name: "invalid"},
	F32:     {"F32", 1, 4, true, decodeF32},
	F16:     {"F16", 1, 2, true, decodeF16},
	BF16:    {"BF16", 1, 2, true, decodeBF16},
	F64:     {"F64", 1, 8, true, nil},
	I64:     {"I64", 1, 8, true, nil},
	I32:     {"I32", 1, 4, true, nil},
	I16:     {"I16", 1, 2, true, nil},
	I8:      {"I8", 1, 1, true, nil},
	U64:     {"U64", 1, 8, true, nil},
	U32:     {"U32", 1, 4, true, nil},
	U16:     {"U16", 1, 2, true, nil},
	U8:      {"U8", 1, 1, true, nil},
	Bool:    {"BOOL", 1, 1, true, nil},
	F8E4M3:  {"F8_E4M3", 1, 1, true, nil},
	F8E5M2:  {"F8_E5M2", 1, 1, true, nil},
	Q4_0:    {"Q4_0", 32, 18, false, decodeQ4_0},
	Q4_1:    {"Q4_1", 32, 20, false, decodeQ4_1},
	Q5_0:    {"Q5_0", 32, 22, false, decodeQ5_0},
	Q5_1:    {"Q5_1", 32, 24, false, decodeQ5_1},
	Q8_0:    {"Q8_0", 32, 34, false, decodeQ8_0},
	Q2K:     {"Q2_K", 256, 84, false, decodeQ2K},
	Q3K:     {"Q3_K", 256, 110, false, decodeQ3K},
	Q4K:     {"Q4_K", 256, 144, false, decodeQ4K},
	Q5K:     {"Q5_K", 256, 176, false, decodeQ5K},
	Q6K:     {"Q6_K", 256, 210, false, decodeQ6K},
}

func (d DType) info() dtypeInfo {
	if int(d) >= len(dtypes) {
		return dtypeInfo{name: fmt.Sprintf("dtype %d", uint8(d))}
	}
	return dtypes[d]
}

// String returns the name that safetensors or ggml gives the type: "F32", "BF16", "Q4_1".
func (d DType) String() string { return d.info().name }

// safetensorsDType returns the type that a safetensors header calls name, or Invalid.
func safetensorsDType(name string) DType {
	for d, info := range dtypes {
		if info.inSafetensors && info.name == name {
			return DType(d)
		}
	}
	return Invalid
}

// FromFloat16 returns the value of IEEE 754 half-precision bits; exact.
func FromFloat16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10)&0x1f, uint32(h&0x3ff)
	switch exp {
	case 0x1f: // infinity or NaN
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case 0: // zero or subnormal: frac·2^-24, exact in float32
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*0x1p-24))
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// FromBFloat16 returns the value of bfloat16 bits; exact.
func FromBFloat16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// ToBFloat16 returns the bits of the bfloat16 nearest to x, ties to even, as PyTorch does. NaN stays a (quiet) NaN, and values
// beyond the largest bfloat16 become infinity.
func ToBFloat16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
