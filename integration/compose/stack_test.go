package compose_test

import (
	"os"
	"strings"
	"testing"

	"github.com/walferry/walferry/config"
)

func TestStack_ConfigurationIsValidWithoutSecrets(t *testing.T) {
	src, err := os.ReadFile("stack/walferry.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("walferry.yaml", src, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Queue.URL; !strings.HasPrefix(got, "nats://nats:") {
		t.Errorf("queue: got %q, want the stack's NATS", got)
	}
	if strings.Contains(string(src), "password") {
		t.Error("the configuration holds a password; it belongs into the environment")
	}
}
