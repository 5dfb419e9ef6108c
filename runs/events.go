package runs

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// A TensorBoard event file is a sequence of records (TFRecord: length, masked CRC-32C of it, data, masked CRC-32C of it) whose data
// are Event messages (tensorflow/core/util/event.proto). Fields used: wall_time 1 (double), step 2 (int64), file_version 3 (string),
// summary 5; Summary.value 1; Value.tag 1 (string), Value.simple_value 2 (float). The wall time is left out: files of equal runs
// are equal.

func versionEvent() []byte {
	b := protowire.AppendTag(nil, 3, protowire.BytesType)
	return protowire.AppendString(b, "brain.Event:2")
}

func scalarEvent(step int, tag string, value float64) []byte {
	v := protowire.AppendTag(nil, 1, protowire.BytesType)
	v = protowire.AppendString(v, tag)
	v = protowire.AppendTag(v, 2, protowire.Fixed32Type)
	v = protowire.AppendFixed32(v, math.Float32bits(float32(value)))
	s := protowire.AppendTag(nil, 1, protowire.BytesType)
	s = protowire.AppendBytes(s, v)
	e := protowire.AppendTag(nil, 2, protowire.VarintType)
	e = protowire.AppendVarint(e, uint64(step))
	e = protowire.AppendTag(e, 5, protowire.BytesType)
	return protowire.AppendBytes(e, s)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func maskedCRC(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// eventRecord frames one message.
func eventRecord(event []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(event)))
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(b))
	b = append(b, event...)
	return binary.LittleEndian.AppendUint32(b, maskedCRC(event))
}
