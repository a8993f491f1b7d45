// Browsers start no workers for pages that are opened as files. There, the worker of the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      const inside = frame.contentDocument;
      inside.open();
      inside.close(); // Firefox would replace the first document later
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.createElement("script");
      script.src = address;
      this.started = new Promise((start) => (script.onload = start));
      inside.body.append(script);
    }

    postMessage(data) {
      this.started.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
