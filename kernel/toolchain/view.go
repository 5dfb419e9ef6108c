package toolchain

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Go's linker reads every symbol and every relocation of the libraries that a cell imports from, hundreds of thousands of them, and
// that is nearly all of a link's time. A view of a library is a small one in its place, which holds what one cell can ask for and is
// otherwise the same for the linker (cmd/link/internal/ld, ldshlibsyms and decodesym.go): the notes, the symbols that the cell's objects
// name, the data of type descriptors with their masks for the garbage collector, and the relocations of structs and arrays. It is
// for the linker alone; the dynamic linker takes the library. What a view lacks makes the link fail, never succeed with
// something else, and then the cell is linked against the libraries.

// errNoView says that a cell has to be linked against the libraries themselves.
var errNoView = errors.New("no view")

// library is an open library of a base.
type library struct {
	path    string
	file    []byte // mapped
	elf     *elf.File
	notes   []*elf.Section
	syms    []byte            // .dynsym
	strs    []byte            // .dynstr
	always  []string          // names that every view holds
	foreign map[string]uint32 // symbols that the library refers to and does not define: they are not in its hash table
	hash    gnuHash
	relocAt func() []reloc
}

// gnuHash is the section .gnu.hash, by which symbols are found (https://flapenguin.me/elf-dt-gnu-hash).
type gnuHash struct {
	first           uint32 // symbols before it are not in the table
	shift           uint32
	bloom           []byte // of 64-bit words
	buckets, chains []byte // of 32-bit words
}

// reloc is a pointer from a place of a library to a symbol.
type reloc struct {
	at  uint64
	sym uint32 // index in .dynsym
}

const (
	symSize   = 24
	relaSize  = 24
	relaAbs64 = 1   // R_X86_64_64
	relaARM64 = 257 // R_AARCH64_ABS64
)

var le = binary.LittleEndian // of both architectures

func openLibrary(path string) (_ *library, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	l := &library{path: path, foreign: map[string]uint32{}}
	if l.file, err = unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE); err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("library %s: %w", path, err), l.close())
		}
	}()
	if l.elf, err = elf.NewFile(bytes.NewReader(l.file)); err != nil {
		return nil, err
	}
	if l.elf.Class != elf.ELFCLASS64 || l.elf.ByteOrder != le {
		return nil, fmt.Errorf("is %v, %v", l.elf.Class, l.elf.ByteOrder)
	}
	part := func(name string) (b []byte) {
		s := l.elf.Section(name)
		if s == nil || s.Type == elf.SHT_NOBITS || s.Offset+s.Size > uint64(len(l.file)) {
			err = fmt.Errorf("section %s is missing", name)
			return nil
		}
		return l.file[s.Offset : s.Offset+s.Size]
	}
	for _, name := range []string{".note.go.abihash", ".note.go.deps"} {
		part(name)
		l.notes = append(l.notes, l.elf.Section(name))
	}
	l.syms, l.strs = part(".dynsym"), part(".dynstr")
	relocs, hash := part(".rela.dyn"), part(".gnu.hash")
	if err != nil {
		return nil, err
	}
	if err := l.hash.parse(hash, uint32(len(l.syms)/symSize)); err != nil {
		return nil, err
	}
	l.relocAt = sync.OnceValue(func() []reloc { return pointers(relocs) })
	// The linker itself asks for symbols of the runtime, and objects name some of those by number.
	for i := uint32(1); i < uint32(len(l.syms)/symSize); i++ {
		s := l.sym(i)
		name := l.name(s)
		rest, ok := strings.CutPrefix(strings.TrimSuffix(strings.TrimSuffix(name, ".abi0"), ".abiinternal"), "runtime.")
		ok = ok && !strings.ContainsAny(rest, ".(") || strings.HasPrefix(name, "go:link.") || strings.HasPrefix(name, "go:buildinfo")
		switch {
		case s.Section == elf.SHN_UNDEF:
			l.foreign[name] = i
		case ok:
			l.always = append(l.always, name)
		}
	}
	l.always = append(l.always, "type:runtime.moduledata")
	return l, nil
}

// close ends the use of the library; nothing of it may be looked at afterwards.
func (l *library) close() error { return unix.Munmap(l.file) }

// parse checks the table's shape, so that lookups cannot leave it.
func (h *gnuHash) parse(b []byte, symbols uint32) error {
	if len(b) < 16 {
		return errors.New(".gnu.hash is too short")
	}
	buckets, bloom := uint64(le.Uint32(b)), uint64(le.Uint32(b[8:]))
	h.first, h.shift = le.Uint32(b[4:]), le.Uint32(b[12:])
	rest := b[16:]
	if buckets == 0 || bloom == 0 || h.first > symbols || uint64(len(rest)) < 8*bloom+4*buckets+4*uint64(symbols-h.first) {
		return errors.New(".gnu.hash is too short for its table")
	}
	h.bloom, h.buckets, h.chains = rest[:8*bloom], rest[8*bloom:8*bloom+4*buckets], rest[8*bloom+4*buckets:]
	return nil
}

// dynSym is a symbol of .dynsym.
type dynSym struct {
	nameAt      uint32
	Info, Other byte
	Section     elf.SectionIndex
	Value, Size uint64
}

func (l *library) sym(i uint32) dynSym {
	b := l.syms[int(i)*symSize:]
	return dynSym{le.Uint32(b), b[4], b[5], elf.SectionIndex(le.Uint16(b[6:])), le.Uint64(b[8:]), le.Uint64(b[16:])}
}

// nameBytes is a symbol's name, in the mapped file.
func (l *library) nameBytes(s dynSym) []byte {
	if uint64(s.nameAt) >= uint64(len(l.strs)) {
		return nil
	}
	name, _, _ := bytes.Cut(l.strs[s.nameAt:], []byte{0})
	return name
}

func (l *library) name(s dynSym) string { return string(l.nameBytes(s)) }

// lookup finds a symbol of the library. The linker takes also those that are not defined there: they set a size of zero.
func (l *library) lookup(name string) (uint32, bool) {
	if i, ok := l.foreign[name]; ok {
		return i, true
	}
	h := uint32(5381)
	for i := range len(name) {
		h = h*33 + uint32(name[i])
	}
	t := &l.hash
	word := le.Uint64(t.bloom[8*(int(h/64)%(len(t.bloom)/8)):])
	if word>>(h%64)&1 == 0 || word>>(h>>t.shift%64)&1 == 0 {
		return 0, false
	}
	i := le.Uint32(t.buckets[4*(int(h)%(len(t.buckets)/4)):])
	if i < t.first {
		return 0, false
	}
	for ; int(i-t.first) < len(t.chains)/4 && int(i) < len(l.syms)/symSize; i++ {
		c := le.Uint32(t.chains[4*(i-t.first):])
		if c|1 == h|1 && string(l.nameBytes(l.sym(i))) == name {
			return i, true
		}
		if c&1 == 1 {
			break
		}
	}
	return 0, false
}

// pointers returns what the linker takes of the relocations, in the order of their places.
func pointers(rela []byte) []reloc {
	list := make([]reloc, 0, len(rela)/relaSize)
	for ; len(rela) >= relaSize; rela = rela[relaSize:] {
		info, addend := le.Uint64(rela[8:]), le.Uint64(rela[16:])
		if t := info & 0xffff; (t == relaAbs64 || t == relaARM64) && addend == 0 && info>>32 != 0 {
			list = append(list, reloc{le.Uint64(rela), uint32(info >> 32)})
		}
	}
	slices.SortFunc(list, func(a, b reloc) int { return cmp.Compare(a.at, b.at) })
	return list
}

// bytesAt returns the content of the library at an address.
func (l *library) bytesAt(at, size uint64) ([]byte, error) {
	for _, s := range l.elf.Sections {
		if s.Flags&elf.SHF_ALLOC != 0 && s.Type == elf.SHT_PROGBITS && s.Addr <= at && at+size >= at && at+size <= s.Addr+s.Size {
			from := s.Offset + at - s.Addr
			if from+size > uint64(len(l.file)) {
				break
			}
			return l.file[from : from+size], nil
		}
	}
	return nil, fmt.Errorf("%w: %s has nothing at %#x", errNoView, l.path, at)
}

// Of a type descriptor (internal/abi.Type), which the linker decodes as well.
const (
	typePtrBytes   = 8
	typeTFlag      = 20
	typeKind       = 23
	typeGCData     = 32
	typeSize       = 48
	tflagGCOnTheGo = 1 << 4 // TFlagGCMaskOnDemand: there is no mask
	kindArray      = 17
	kindStruct     = 25
	kindMask       = 1<<5 - 1
)

// span is a range of addresses.
type span struct{ from, to uint64 }

// selection collects what a view holds.
type selection struct {
	l      *library
	order  []uint32          // symbols, in the order in which they came
	at     map[uint32]uint32 // symbol -> its index in the view
	spans  []span
	relocs []reloc
}

func (s *selection) add(i uint32) error {
	if _, ok := s.at[i]; ok {
		return nil
	}
	s.order = append(s.order, i)
	s.at[i] = uint32(len(s.order))
	sym := s.l.sym(i)
	if name := s.l.nameBytes(sym); !isTypeName(name) || sym.Section == elf.SHN_UNDEF || elf.ST_TYPE(sym.Info) == elf.STT_FUNC {
		return nil
	}
	data, err := s.l.bytesAt(sym.Value, sym.Size)
	if err != nil {
		return err
	}
	if len(data) < typeSize {
		return fmt.Errorf("%w: type descriptor %s of %d bytes", errNoView, s.l.name(sym), len(data))
	}
	s.spans = append(s.spans, span{sym.Value, sym.Value + sym.Size})
	pointerBytes := le.Uint64(data[typePtrBytes:])
	if pointerBytes == 0 {
		return nil // the linker looks no further
	}
	if kind := data[typeKind] & kindMask; kind == kindArray || kind == kindStruct {
		all := s.l.relocAt()
		from, _ := slices.BinarySearchFunc(all, sym.Value, func(r reloc, at uint64) int { return cmp.Compare(r.at, at) })
		for _, r := range all[from:] {
			if r.at >= sym.Value+sym.Size {
				break
			}
			if uint64(r.sym) >= uint64(len(s.l.syms)/symSize) {
				return fmt.Errorf("%w: relocation to symbol %d", errNoView, r.sym)
			}
			s.relocs = append(s.relocs, r)
			if err := s.add(r.sym); err != nil {
				return err
			}
		}
		return nil
	}
	if data[typeTFlag]&tflagGCOnTheGo != 0 {
		return nil
	}
	mask, size := le.Uint64(data[typeGCData:]), (pointerBytes/8+7)/8
	if _, err := s.l.bytesAt(mask, size); err != nil {
		return err
	}
	s.spans = append(s.spans, span{mask, mask + size})
	return nil
}

// isTypeName says whether the linker decodes what has this name.
func isTypeName(name []byte) bool {
	return bytes.HasPrefix(name, []byte("type:")) && !bytes.HasPrefix(name, []byte("type:."))
}

// view writes a view with the named symbols, and returns the names of those that it refers to and other libraries define.
func (l *library) view(to string, names []string) (more []string, err error) {
	s := &selection{l: l, at: map[uint32]uint32{}}
	for _, name := range names {
		if i, ok := l.lookup(name); ok {
			if err := s.add(i); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range l.always {
		if i, ok := l.lookup(name); ok {
			if err := s.add(i); err != nil {
				return nil, err
			}
		}
	}
	// Spans that touch or overlap are one section, so that each symbol and mask lies in one as a whole.
	slices.SortFunc(s.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var spans []span
	for _, p := range s.spans {
		if n := len(spans); n > 0 && p.from <= spans[n-1].to {
			spans[n-1].to = max(spans[n-1].to, p.to)
			continue
		}
		spans = append(spans, p)
	}
	w := viewWriter{buf: make([]byte, 64, 1<<20), names: []byte{0}}
	w.section("", elf.SHT_NULL, 0, nil, 0, 0)
	const away = 1 << 62 // an address at which the linker looks for nothing
	for _, n := range l.notes {
		w.section(n.Name, elf.SHT_NOTE, away, l.file[n.Offset:n.Offset+n.Size], 0, 0)
	}
	first := len(w.headers)/64 + 3 // section of the first span
	if first+len(spans) >= int(elf.SHN_LORESERVE) {
		return nil, fmt.Errorf("%w: %d spans", errNoView, len(spans))
	}
	strs, syms := []byte{0}, make([]byte, symSize)
	for _, i := range s.order {
		sym := l.sym(i)
		section := sym.Section
		if name := l.nameBytes(sym); section != elf.SHN_UNDEF {
			section = elf.SHN_ABS // which one does not matter
			if isTypeName(name) {
				n, ok := slices.BinarySearchFunc(spans, sym.Value, func(p span, at uint64) int {
					switch {
					case p.to <= at:
						return -1
					case p.from > at:
						return 1
					}
					return 0
				})
				if ok {
					section = elf.SectionIndex(first + n)
				}
			}
		} else {
			more = append(more, string(name))
		}
		var b [symSize]byte
		le.PutUint32(b[:], uint32(len(strs)))
		b[4], b[5] = sym.Info, sym.Other
		le.PutUint16(b[6:], uint16(section))
		le.PutUint64(b[8:], sym.Value)
		le.PutUint64(b[16:], sym.Size)
		syms = append(syms, b[:]...)
		strs = append(append(strs, l.nameBytes(sym)...), 0)
	}
	var rela []byte
	abs := uint64(relaAbs64)
	if l.elf.Machine == elf.EM_AARCH64 {
		abs = relaARM64
	}
	for _, r := range s.relocs {
		rela = le.AppendUint64(rela, r.at)
		rela = le.AppendUint64(rela, uint64(s.at[r.sym])<<32|abs)
		rela = le.AppendUint64(rela, 0)
	}
	here := uint32(len(w.headers) / 64)
	w.section(".dynstr", elf.SHT_STRTAB, away, strs, 0, 0)
	w.section(".dynsym", elf.SHT_DYNSYM, away, syms, here, symSize)
	w.section(".rela.dyn", elf.SHT_RELA, away, rela, here+1, relaSize)
	for _, p := range spans {
		data, err := l.bytesAt(p.from, p.to-p.from)
		if err != nil {
			return nil, err
		}
		w.section(".data", elf.SHT_PROGBITS, p.from, data, 0, 0)
	}
	return more, os.WriteFile(to, w.finish(l.elf.Machine), 0o600)
}

// viewWriter puts an ELF file together.
type viewWriter struct{ buf, headers, names []byte }

func (w *viewWriter) section(name string, typ elf.SectionType, addr uint64, data []byte, link uint32, entry uint64) {
	for len(w.buf)%8 != 0 {
		w.buf = append(w.buf, 0)
	}
	at := 0
	if name != "" {
		if at = bytes.Index(w.names, []byte(name+"\x00")); at < 0 {
			at = len(w.names)
			w.names = append(append(w.names, name...), 0)
		}
	}
	h := make([]byte, 64)
	le.PutUint32(h, uint32(at))
	le.PutUint32(h[4:], uint32(typ))
	le.PutUint64(h[16:], addr)
	if typ != elf.SHT_NULL {
		le.PutUint64(h[24:], uint64(len(w.buf)))
		le.PutUint64(h[32:], uint64(len(data)))
	}
	le.PutUint32(h[40:], link)
	le.PutUint64(h[48:], 1)
	le.PutUint64(h[56:], entry)
	w.headers = append(w.headers, h...)
	w.buf = append(w.buf, data...)
}

func (w *viewWriter) finish(machine elf.Machine) []byte {
	w.names = append(w.names, ".shstrtab\x00"...)
	w.section(".shstrtab", elf.SHT_STRTAB, 1<<62, w.names, 0, 0)
	for len(w.buf)%8 != 0 {
		w.buf = append(w.buf, 0)
	}
	b := w.buf
	copy(b, elf.ELFMAG)
	b[elf.EI_CLASS], b[elf.EI_DATA], b[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(machine))
	le.PutUint32(b[20:], uint32(elf.EV_CURRENT))
	le.PutUint64(b[40:], uint64(len(b))) // section headers
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[58:], 64)
	n := len(w.headers) / 64
	le.PutUint16(b[60:], uint16(n))
	le.PutUint16(b[62:], uint16(n-1))
	return append(b, w.headers...)
}

// Of Go's object files (cmd/internal/goobj). Another version has another magic.
const (
	goobjMagic   = "\x00go120ld"
	goobjOffsets = len(goobjMagic) + 8 + 4
	goobjLibSize = 16
	goobjSymSize = 21
	blkAutolib   = 0
	blkPkgIdx    = 1
	blkSymdef    = 3
	blkNonpkgref = 7 // the last block of symbols
)

// objects is what the objects of an archive say.
type objects struct {
	names   []string // of all symbols that they define or refer to
	imports []string // packages whose archives the linker loads for them
}

// readObjects reads a Go archive.
func readObjects(archive []byte) (objects, error) {
	var o objects
	rest, ok := bytes.CutPrefix(archive, []byte("!<arch>\n"))
	if !ok {
		return o, fmt.Errorf("%w: no archive", errNoView)
	}
	for len(rest) > 0 {
		if len(rest) < 60 {
			return o, fmt.Errorf("%w: an archive is cut short", errNoView)
		}
		size, err := strconv.ParseUint(strings.TrimSpace(string(rest[48:58])), 10, 32)
		if err != nil || size > uint64(len(rest)-60) {
			return o, fmt.Errorf("%w: member of an archive of %q bytes", errNoView, rest[48:58])
		}
		member, name := rest[60:60+size], strings.TrimSpace(string(rest[:16]))
		rest = rest[min(uint64(len(rest)), 60+size+size%2):]
		if name == "__.PKGDEF" {
			continue
		}
		_, object, ok := bytes.Cut(member, []byte("\n!\n"))
		if !bytes.HasPrefix(member, []byte("go object ")) || !ok || !bytes.HasPrefix(object, []byte(goobjMagic)) || len(object) < goobjOffsets+4*(blkNonpkgref+2) {
			return o, fmt.Errorf("%w: member %s of an archive is no Go object that is known", errNoView, name)
		}
		// column returns the strings with which the entries of some blocks begin.
		column := func(first, end, size int) (list []string) {
			from, to := uint64(le.Uint32(object[goobjOffsets+4*first:])), uint64(le.Uint32(object[goobjOffsets+4*end:]))
			if from > to || to > uint64(len(object)) || (to-from)%uint64(size) != 0 {
				err = fmt.Errorf("%w: blocks %d to %d of an object from %d to %d", errNoView, first, end, from, to)
				return nil
			}
			for at := from; at < to; at += uint64(size) {
				n, off := uint64(le.Uint32(object[at:])), uint64(le.Uint32(object[at+4:]))
				if off+n > uint64(len(object)) {
					err = fmt.Errorf("%w: string of an object at %d", errNoView, off)
					return nil
				}
				list = append(list, string(object[off:off+n]))
			}
			return list
		}
		o.names = append(o.names, column(blkSymdef, blkNonpkgref+1, goobjSymSize)...)
		o.imports = append(o.imports, column(blkAutolib, blkPkgIdx, goobjLibSize)...)
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

// exported returns the names that a symbol of an object may have in a library.
func exported(name string) []string {
	out := []string{name, name + ".abiinternal", name + ".abi0"}
	if m := mangled(name); m != name {
		out = append(out, m, m+".abiinternal", m+".abi0")
	}
	return out
}

// mangled shortens a name as the linker does (cmd/link/internal/ld, typeSymbolMangle).
func mangled(name string) string {
	isType := strings.HasPrefix(name, "type:")
	if !isType && !strings.Contains(name, "@") || strings.HasPrefix(name, "type:runtime.") || strings.HasPrefix(name, "go:string.") ||
		len(name) <= 14 && !strings.Contains(name, "@") {
		return name
	}
	short := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		sum[0] ^= 0xff // cmd/internal/hash
		return base64.StdEncoding.EncodeToString(sum[:6])
	}
	if isType {
		prefix := "type:"
		if strings.HasPrefix(name, "type:.") {
			prefix = "type:."
		}
		return prefix + short(name[len("type:"):])
	}
	i, j := strings.IndexByte(name, '['), strings.LastIndexByte(name, ']')
	if i < 0 {
		return name
	}
	if j <= i {
		j = len(name)
	}
	return name[:i+1] + short(name[i+1:j]) + name[j:]
}

// views are the open libraries of a base, and what is known of archives.
type views struct {
	mu     sync.Mutex
	libs   []*library
	err    error // of opening them
	closed bool
	known  map[string]objects // by archive; of those that cells bring along, with the names that libraries have for theirs
}

// close ends the use of the libraries.
func (v *views) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	var err error
	for _, l := range v.libs {
		err = errors.Join(err, l.close())
	}
	v.libs = nil
	return err
}

// write makes views of the base's libraries in dir for a cell's archive and for what it imports of archives (import path -> file).
func (v *views) write(base *Base, dir, own string, archives map[string]string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return fmt.Errorf("%w: the base is closed", errNoView)
	}
	if v.libs == nil && v.err == nil {
		v.known = map[string]objects{}
		for _, name := range base.libs() {
			l, err := openLibrary(filepath.Join(base.Dir, name))
			if err != nil {
				v.err = err
				break
			}
			v.libs = append(v.libs, l)
		}
	}
	if v.err != nil {
		return v.err
	}
	seen := map[string]bool{}
	var names []string
	want := func(list []string) {
		for _, n := range list {
			if !seen[n] {
				seen[n] = true
				names = append(names, n)
			}
		}
	}
	files := []string{own}
	for i := 0; i < len(files); i++ {
		o, ok := v.known[files[i]]
		if !ok {
			data, err := os.ReadFile(files[i])
			if err != nil {
				return err
			}
			read, err := readObjects(data)
			if err != nil {
				return err
			}
			o.imports = read.imports
			for _, n := range read.names {
				o.names = append(o.names, exported(n)...)
			}
			if i > 0 {
				v.known[files[i]] = o
			}
		}
		want(o.names)
		for _, path := range o.imports {
			if file := archives[path]; file != "" && !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The highest library first: what it refers to, those below define.
	for _, l := range slices.Backward(v.libs) {
		more, err := l.view(filepath.Join(dir, filepath.Base(l.path)), names)
		if err != nil {
			return err
		}
		want(more)
	}
	return nil
}

// libs are the names of the base's libraries, the lowest first.
func (b *Base) libs() []string {
	var out []string
	for _, lib := range tiers {
		if slices.ContainsFunc(b.sorted(), func(path string) bool { return b.Packages[path].Lib == lib }) {
			out = append(out, lib)
		}
	}
	return out
}

// viewConfig sends the linker to the views in dir instead of the libraries.
func (b *Base) viewConfig(name, dir string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for _, lib := range b.libs() {
		data = bytes.ReplaceAll(data, []byte("="+filepath.Join(b.Dir, lib)+"\n"), []byte("="+filepath.Join(dir, lib)+"\n"))
	}
	return os.WriteFile(name, data, 0o600)
}
