package pgoutput_test

import (
	"bufio"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walferry/walferry/source/pgoutput"
)

// goldenMessages reads the messages recorded from servers: one line of hex a
// message in testdata/*.hex, written by TestRecord_Golden.
func goldenMessages(t testing.TB) [][]byte {
	t.Helper()
	var all [][]byte
	for _, f := range goldenFiles(t) {
		all = append(all, readGolden(t, f)...)
	}
	return all
}

func goldenFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.hex")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func readGolden(t testing.TB, file string) [][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all [][]byte
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		b, err := hex.DecodeString(s.Text())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// Files are named <version>-v<protocol>.hex; each holds the same script run
// against that server.
func TestGolden_RecordedStreamsDecode(t *testing.T) {
	files := goldenFiles(t)
	if len(files) == 0 {
		t.Fatal("no recorded streams in testdata")
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			d := pgoutput.Decoder{Protocol: int(f[len(f)-len("1.hex")] - '0')}
			var kinds strings.Builder
			for i, b := range readGolden(t, f) {
				m, err := d.Decode(b)
				if err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				kinds.WriteByte(byte(m.Kind))
			}
			for _, k := range goldenKinds[d.Protocol] {
				if !strings.ContainsRune(kinds.String(), k) {
					t.Errorf("no %c among the recorded messages %s", k, kinds.String())
				}
			}
		})
	}
}

var goldenKinds = map[int]string{
	1: "BCORYIUDTM",
	2: "BCORYIUDTMSEcA",
	3: "BCORYIUDTMSEcAbPKrp",
	4: "BCORYIUDTMSEcAbPKrp",
}
