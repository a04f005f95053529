package lowerdir

import (
	"context"
	"errors"
	"path/filepath"

	"turnstone.dev/turnstone"
)

// Hold returns the paths of the images called names, in their order. They stay until release is
// called. An image that is no longer in the cache is an error of kind NotFound.
func (c *Cache) Hold(names []string) (paths []string, release func(), err error) {
	segments := make([]segment, len(names))
	for i, name := range names {
		if !keyRule.MatchString(name) {
			return nil, nil, turnstone.Errorf("image.hold", turnstone.KindInvalid, name,
				"is not the name of an image")
		}
		segments[i] = segment{Image: name}
	}
	all, missing := c.holdAll(segments)
	if missing != "" {
		return nil, nil, turnstone.Errorf("image.hold", turnstone.KindNotFound, missing,
			"the image is no longer in the cache")
	}
	return all.paths(), all.release, nil
}

// Recipes returns the recipes of the images at paths, which are held.
func (c *Cache) Recipes(paths []string) ([]turnstone.ImageRecipe, error) {
	recipes := make([]turnstone.ImageRecipe, len(paths))
	for i, path := range paths {
		key := filepath.Base(path)
		side, ok := c.whole(key)
		if !ok {
			return nil, unavailable(path, errors.New("the image is damaged"))
		}
		recipes[i] = side.Recipe
	}
	return recipes, nil
}

// Remake is Hold that makes missing images again. history is the history of the state that the
// recipes' images lead to, or of a later state.
func (c *Cache) Remake(ctx context.Context, recipes []turnstone.ImageRecipe,
	history History) (paths []string, release func(), err error) {
	if err := c.mkdirs(); err != nil {
		return nil, nil, err
	}
	h := newWalk(history)
	defer h.stop()
	names := make([]string, len(recipes))
	for i, r := range recipes {
		names[i] = r.Image
		if _, ok := c.whole(r.Image); ok {
			continue
		}
		first, err := h.find(r.Newest)
		if err != nil {
			return nil, nil, err
		}
		s := &segment{From: r.From, To: r.To, Newest: r.Newest, Turns: r.Turns}
		if err := c.make(ctx, s, h.from(first)); err != nil {
			return nil, nil, err
		}
		if s.Image != r.Image {
			return nil, nil, turnstone.Errorf("image.remake", turnstone.KindIntegrity, r.Image,
				"the history results in another image than before")
		}
	}
	return c.Hold(names)
}
