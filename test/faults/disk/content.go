package disk

import "maps"

const (
	blockSize  = 4096
	sectorSize = 512 // smallest unit that a crash writes or loses
)

// content is the data of a file. Blocks that are not in the map are zero.
//
// Invariant: a block is never modified after it was added to a content, so that copies of a content share blocks.
type content struct {
	size   int64
	blocks map[int64]*[blockSize]byte
}

func (c *content) clone() content { return content{c.size, maps.Clone(c.blocks)} }

// write writes data at an offset, and extends the file if the data ends behind its end.
func (c *content) write(offset int64, data []byte) {
	for done := 0; done < len(data); {
		position := offset + int64(done)
		index, within := position/blockSize, int(position%blockSize)
		block := new([blockSize]byte)
		if former, ok := c.blocks[index]; ok && (within > 0 || len(data)-done < blockSize) {
			*block = *former
		}
		done += copy(block[within:], data[done:])
		if c.blocks == nil {
			c.blocks = map[int64]*[blockSize]byte{}
		}
		c.blocks[index] = block
	}
	c.size = max(c.size, offset+int64(len(data)))
}

func (c *content) read(offset int64, into []byte) int {
	length := int(min(int64(len(into)), max(0, c.size-offset)))
	for done := 0; done < length; {
		position := offset + int64(done)
		index, within := position/blockSize, int(position%blockSize)
		part := into[done:min(length, done+blockSize-within)]
		if block, ok := c.blocks[index]; ok {
			copy(part, block[within:])
		} else {
			clear(part)
		}
		done += len(part)
	}
	return length
}

// truncate sets the size of the file in bytes. A part that is added reads as zeros.
func (c *content) truncate(size int64) {
	if size < c.size {
		for index := range c.blocks {
			if index*blockSize >= size {
				delete(c.blocks, index)
			}
		}
		if within := size % blockSize; within > 0 {
			if former, ok := c.blocks[size/blockSize]; ok {
				block := new([blockSize]byte)
				copy(block[:within], former[:within])
				c.blocks[size/blockSize] = block
			}
		}
	}
	c.size = size
}

// change is a write or, without data, a truncation of a file.
type change struct {
	sequence int64 // position among all changes of the volume
	offset   int64 // offset of the data in the file; without data, the size after the truncation
	data     []byte
}

func (c change) apply(to *content) {
	if c.data == nil {
		to.truncate(c.offset)
		return
	}
	to.write(c.offset, c.data)
}

// sectors returns the parts of a write that a crash keeps or loses independently of each other. A truncation is one
// part.
func (c change) sectors() (parts []change) {
	if c.data == nil {
		return []change{c}
	}
	for done := 0; done < len(c.data); {
		offset := c.offset + int64(done)
		length := min(len(c.data)-done, int(sectorSize-offset%sectorSize))
		parts = append(parts, change{c.sequence, offset, c.data[done : done+length]})
		done += length
	}
	return parts
}
