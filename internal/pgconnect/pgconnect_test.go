package pgconnect

import (
	"strings"
	"testing"
	"time"
)

func TestParse_PinnedSettingsWinOverTheConnectionString(t *testing.T) {
	c, err := Parse("postgres://u:secret@h/db?datestyle=SQL,DMY&search_path=app&application_name=mine&replication=true", "applier")
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range pinned {
		if c.RuntimeParams[k] != v {
			t.Errorf("%s = %q, want %q", k, c.RuntimeParams[k], v)
		}
	}
	if _, ok := c.RuntimeParams["datestyle"]; ok {
		t.Error("the user's spelling of DateStyle is still there: the server would use either of the two")
	}
	if got := c.RuntimeParams["application_name"]; got != "mine" {
		t.Errorf("application_name = %q, want the user's", got)
	}
	if _, ok := c.RuntimeParams["replication"]; ok {
		t.Error("an applier connection must not be a replication connection")
	}
	if c.RuntimeParams["row_security"] != "off" {
		t.Error("row_security is not off on an SQL connection")
	}
}

func TestParse_TheServerNoticesAVanishedClient(t *testing.T) {
	for _, role := range []string{Replication, "applier"} {
		c, err := Parse("host=h TCP_Keepalives_Idle=7", role)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := c.RuntimeParams["tcp_keepalives_idle"]; ok || c.RuntimeParams["TCP_Keepalives_Idle"] != "7" {
			t.Errorf("%s: the user's tcp_keepalives_idle is not kept: %v", role, c.RuntimeParams)
		}
		for _, k := range []string{"tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"} {
			if c.RuntimeParams[k] == "" {
				t.Errorf("%s: %s is not set", role, k)
			}
		}
	}
}

func TestParse_ReplicationRole(t *testing.T) {
	c, err := Parse("host=h user=u dbname=d connect_timeout=7", Replication)
	if err != nil {
		t.Fatal(err)
	}
	if c.RuntimeParams["replication"] != "database" {
		t.Error("replication=database is missing")
	}
	if _, ok := c.RuntimeParams["row_security"]; ok {
		t.Error("row_security is set on a replication connection")
	}
	if c.ConnectTimeout != 7*time.Second {
		t.Errorf("connect timeout = %v, want the user's 7s", c.ConnectTimeout)
	}
}

func TestParse_ErrorsNeverShowThePassword(t *testing.T) {
	const pw = "s3cr3tpw"
	for _, s := range []string{
		"postgres://u:" + pw + "@h:notaport/db",
		"postgres://u:" + pw + "/x@h/db",
		"postgres://u:%zz" + pw + "@h/db",
		"postgres://u:" + pw + "@h/db?sslmode=bogus",
		"postgres://u:" + pw + "@h/db?connect_timeout=" + pw,
		"host=h password='" + pw,
		"host=h password=a`: " + pw + " port=x",
		"host=h port=" + pw,
		"host=h password " + pw,
		"postgres://u:" + pw + "@h/db?sslrootcert=/nowhere/" + pw,
	} {
		_, err := Parse(s, "x")
		if err == nil {
			continue // accepted is no leak
		}
		if strings.Contains(err.Error(), pw) {
			t.Errorf("Parse(%q): error shows the password: %v", s, err)
		}
	}
	if _, err := Parse("postgres://u:"+pw+"@h:notaport/db", "x"); err == nil {
		t.Error("a port that is no number is accepted")
	}
}

func TestServerVersion(t *testing.T) {
	for s, want := range map[string]int{
		"15.17 (Debian 15.17-0+deb12u1)": 150017, "18beta1": 180000, "17.2": 170002, "": 0, "devel": 0,
	} {
		if got := ServerVersion(s); got != want {
			t.Errorf("ServerVersion(%q) = %d, want %d", s, got, want)
		}
	}
}
