package change

import (
	"encoding/json"
	"testing"
)

func TestLSN_PrintsAndReadsAsPostgreSQLDoes(t *testing.T) {
	for s, want := range map[string]LSN{"0/0": 0, "16/B374D848": 0x16_B374D848, "FFFFFFFF/FFFFFFFF": 1<<64 - 1, "0/1": 1, "1/0": 1 << 32} {
		got, err := ParseLSN(s)
		if err != nil || got != want {
			t.Errorf("ParseLSN(%q) = %v, %v", s, got, err)
		}
		if want.String() != s {
			t.Errorf("%d prints as %s, want %s", uint64(want), want, s)
		}
	}
	if l, err := ParseLSN("a/0000000b"); err != nil || l != 0xa_0000000b {
		t.Errorf("lower case and leading zeros: %v, %v", l, err)
	}
}

func TestLSN_RefusesWhatPostgreSQLRefuses(t *testing.T) {
	for _, s := range []string{"", "/", "0/", "/0", "0", "0/0/0", "g/0", "0/g", "-1/0", "+1/0", " 0/0", "0/0 ", "0x1/0", "123456789/0", "0/123456789", "1_0/0"} {
		if l, err := ParseLSN(s); err == nil {
			t.Errorf("ParseLSN(%q) = %v", s, l)
		}
	}
}

func TestLSN_JSONIsText(t *testing.T) {
	b, err := json.Marshal(LSN(0x16_B374D848))
	if err != nil || string(b) != `"16/B374D848"` {
		t.Fatalf("%s, %v", b, err)
	}
	var l LSN
	if err := json.Unmarshal(b, &l); err != nil || l != 0x16_B374D848 {
		t.Errorf("%v, %v", l, err)
	}
}
