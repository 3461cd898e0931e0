/* A browser starts no worker for a page that was opened from a disk. There, and only there, an iframe stands in for it,
   so that search works without a server. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      this.ready = new Promise((resolve, reject) => {
        inner.document.open();
        inner.document.write("<!doctype html><html><body></body></html>");
        inner.document.close();
        inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        inner.importScripts = (...urls) =>
          urls.reduce((before, each) => before.then(() => load(inner.document, each)), Promise.resolve());
        load(inner.document, url).then(() => resolve(inner), reject);
      });
    }
    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
    terminate() {}
  };
  const load = (page, url) =>
    new Promise((resolve, reject) => {
      const script = page.createElement("script");
      script.src = url;
      script.onload = resolve;
      script.onerror = reject;
      page.body.append(script);
    });
}
